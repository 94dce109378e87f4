#!/usr/bin/env bash
# k8s/Dockerfile -> localhost/rookery:dev, and a pause image, as archives in FOLDER/share: without a registry, the
# base is Debian's own Python. Inside FOLDER alone; layers that did not change are kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
folder=${ROOKERY_CLUSTER:-$root/build/cluster}
mkdir -p "$folder/share" && folder=$(cd "$folder" && pwd)
machine=$here/machine.sh

# what Docker would send as context: what .dockerignore lets through
context=$folder/root/context
rm -rf "$context" && mkdir -p "$context/.ci"
tar -C "$root" --exclude=__pycache__ --exclude=node_modules -c .ci/constraints.txt LICENSE README.md launch protocol \
    pyproject.toml workers k8s/Dockerfile | tar -C "$context" -x
now=$(cd "$context" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
if [[ -s $folder/share/rookery.tar && $(cat "$folder/share/rookery.is" 2>/dev/null) == "$now" ]]; then
    exit 0
fi

# pip fetches as it does on this machine
python3 -m pip config list 2>/dev/null | sed -n "s/^global\.\([a-z-]*\)='\(.*\)'$/\1 = \2/p" >"$folder/pip.list"
{ echo '[global]'; grep -E '^(index-url|cert|trusted-host|proxy|timeout) ' "$folder/pip.list" || true; } \
    >"$folder/root/pip.conf"
lent=(-v /pip.conf:/etc/pip.conf:ro -v /etc/ssl/certs:/etc/ssl/certs:ro)
if [[ -d ${PIP_FIND_LINKS:-} ]]; then
    echo "find-links = $PIP_FIND_LINKS" >>"$folder/root/pip.conf"
    lent+=(-v "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
    [[ -n $(ls "$PIP_FIND_LINKS"/torch-* 2>/dev/null) ]] && lent+=(--build-arg TORCH_INDEX=https://pypi.org/simple)
fi

cat >"$folder/root/context/pause.c" <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap); for (;;) pause(); }
C
cp -a "$folder/base/." "$folder/root/base" 2>/dev/null || { mkdir "$folder/root/base"; cp -a "$folder/base/." "$folder/root/base"; }
"$machine" online bash -euc '
    export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay
    if ! buildah inspect --type image localhost/base:bookworm >/dev/null 2>&1; then
        made=$(buildah from scratch)
        cp -a /base/. "$(buildah mount "$made")"
        buildah umount "$made" >/dev/null
        buildah commit -q --rm "$made" localhost/base:bookworm
    fi
    buildah bud --layers --pull-never --format docker --network host "$@" \
        --build-arg BASE=localhost/base:bookworm -f /context/k8s/Dockerfile -t localhost/rookery:dev /context
    gcc -static -Os -s -o /context/pause /context/pause.c
    printf "FROM scratch\nCOPY pause /pause\nENTRYPOINT [\"/pause\"]\n" >/context/pause.Dockerfile
    buildah bud --pull-never --format docker -f /context/pause.Dockerfile -t localhost/pause:dev /context
    for image in rookery pause; do
        rm -f "/$image.tar"
        buildah push -q "localhost/$image:dev" "docker-archive:/$image.tar:localhost/$image:dev"
    done' _ "${lent[@]}"
mv "$folder/root/rookery.tar" "$folder/root/pause.tar" "$folder/share/"
echo "$now" >"$folder/share/rookery.is"
rm -rf "$context" "$folder/root/base"
