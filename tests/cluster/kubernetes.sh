#!/usr/bin/env bash
# Kubernetes 1.20.2 from Debian 12's own source package, which carries all that it needs: six programs into
# FOLDER/share/bin. Ten minutes of two quiet cores, once; FOLDER/root/kubernetes keeps what was compiled until then.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${ROOKERY_CLUSTER:-$here/../../build/cluster}
mkdir -p "$folder/share/bin" && folder=$(cd "$folder" && pwd)
programs="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
for program in $programs; do [[ -x $folder/share/bin/$program ]] || missing=1; done
[[ -n ${missing:-} ]] || exit 0

"$here/machine.sh" online bash -euc '
    echo "deb-src http://deb.debian.org/debian bookworm main" >/etc/apt/sources.list.d/source.list
    apt-get update -qq
    apt-get install -qq --yes --no-install-recommends dpkg-dev golang-1.19-go patch xz-utils
    mkdir -p /kubernetes/home && cd /kubernetes
    if [[ ! -e source/.whole ]]; then
        rm -rf source
        apt-get source -qq --download-only kubernetes
        mkdir -p source/.go/src/k8s.io
        tar -xzf kubernetes_*.orig.tar.gz -C source --strip-components 1
        tar -xJf kubernetes_*.debian.tar.xz -C source
        (cd source && for change in debian/patches/*.patch; do patch -p1 -s <"$change"; done)
        ln -s ../../.. source/.go/src/k8s.io/kubernetes
        touch source/.whole
    fi
    export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=/kubernetes/source/.go HOME=/kubernetes/home \
        GOCACHE=/kubernetes/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=-p=2
    cd "$GOPATH/src/k8s.io/kubernetes"
    export PWD=$GOPATH/src/k8s.io/kubernetes
    # the one generated file that the package lacks
    made=pkg/generated/openapi/zz_generated.openapi.go
    if [[ ! -s $made ]]; then
        tagged=$(grep -rlE --include="*.go" "\+k8s:openapi-gen=" pkg cmd staging/src/k8s.io |
            grep -vE "/code-generator/|/sample-apiserver/|_test.go$" | xargs -n1 dirname | LC_ALL=C sort -u |
            sed "s,^staging/src/,vendor/,; s,^,k8s.io/kubernetes/," | paste -sd,)
        go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen -i "$tagged" -p k8s.io/kubernetes/pkg/generated/openapi \
            -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null
    fi
    linked="-s -w"
    for package in client-go/pkg component-base; do
        for said in gitVersion=v1.20.2 gitMajor=1 gitMinor=20 gitCommit=debian gitTreeState=archive; do
            linked="$linked -X k8s.io/kubernetes/vendor/k8s.io/$package/version.$said"
        done
    done
    mkdir -p /kubernetes/bin
    go build -ldflags "$linked" -o /kubernetes/bin/ $(printf "./cmd/%s " "$@")' _ $programs
mv "$folder"/root/kubernetes/bin/* "$folder/share/bin/"
rm -rf "$folder/root/kubernetes"
