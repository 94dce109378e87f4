#!/usr/bin/env bash
# One node of Kubernetes inside the machine of machine.sh: etcd, the four parts of the control plane, containerd, the
# kubelet, names by dns.py. /share holds programs, images and these files; what lasts dies with the machine.
set -euo pipefail
cd /share
export PATH=/share/bin:$PATH KUBECONFIG=/share/admin.yaml
node=10.99.0.2 state=/run/cluster
rm -rf /var/lib/kubelet /var/lib/volume && mkdir -p /share/log $state/pki /var/lib/kubelet
mkdir -m 777 /var/lib/volume

start() {
    local name=$1
    shift
    setsid "$@" >"/share/log/$name.log" 2>&1 </dev/null &
}

until_true() {
    for _ in $(seq 3000); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "'$*' was not so for ten minutes; see the logs beside it, as in $(tail -qn1 /share/log/*.log | tail -1)" >&2
    exit 1
}

# the kubelet sets these for the whole machine: it gets files of that content in their place
kept() {
    local path=$state/kept/$1
    mkdir -p "$(dirname "$path")" && echo "$2" >"$path" && mount --bind "$path" "/proc/sys/$1"
}
kept vm/overcommit_memory 1
kept vm/panic_on_oom 0
kept kernel/panic 10
kept kernel/panic_on_oops 1
kept kernel/keys/root_maxkeys 1000000
kept kernel/keys/root_maxbytes 25000000

# groups of processes under one name, so that machine.sh can remove them all
for tree in $(awk '/ - cgroup / {print $5}' /proc/self/mountinfo); do
    mkdir -p "$tree/rookery-cluster"
    for part in cpuset.cpus cpuset.mems; do
        if [[ -e $tree/$part ]]; then cat "$tree/$part" >"$tree/rookery-cluster/$part"; fi
    done
    # the share of eight processes, not of one: as many as the pods are beside others on a busy machine
    if [[ -e $tree/rookery-cluster/cpu.shares ]]; then echo 8192 >"$tree/rookery-cluster/cpu.shares"; fi
done

openssl genrsa -out $state/pki/accounts.key 2048 2>/dev/null
token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo "$token,admin,1,system:masters" >$state/pki/tokens.csv
cat >admin.yaml <<Y
apiVersion: v1
kind: Config
clusters: [{name: one, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: one, context: {cluster: one, user: admin}}]
current-context: one
Y
chmod 600 admin.yaml

start etcd etcd --data-dir $state/etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir=$state/pki --bind-address=0.0.0.0 \
    --advertise-address=$node --secure-port=6443 --kubelet-preferred-address-types=InternalIP --allow-privileged \
    --token-auth-file=$state/pki/tokens.csv --authorization-mode=Node,RBAC --service-cluster-ip-range=10.96.0.0/16 \
    --service-account-key-file=$state/pki/accounts.key --service-account-signing-key-file=$state/pki/accounts.key \
    --service-account-issuer=https://kubernetes.default.svc
mkdir -p /etc/containerd /etc/cni/net.d
cat >/etc/containerd/config.toml <<'T'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
T
cat >/etc/cni/net.d/10-pods.conflist <<'J'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.88.0.0/24"}]],
    "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
start containerd containerd
until_true ctr version
ctr --namespace k8s.io containers ls -q | xargs -r ctr --namespace k8s.io containers rm >/dev/null # of an earlier machine
for image in pause rookery; do
    if [[ $(cat "/var/lib/containerd/$image.is" 2>/dev/null) != "$(stat -c %Y-%s "$image.tar")" ]]; then
        ctr --namespace k8s.io images import "$image.tar" >/dev/null
        stat -c %Y-%s "$image.tar" >"/var/lib/containerd/$image.is"
    fi
done

until_true kubectl get --raw /readyz
start controllers kube-controller-manager --kubeconfig=admin.yaml --leader-elect=false --cert-dir=$state/pki \
    --service-account-private-key-file=$state/pki/accounts.key
start scheduler kube-scheduler --kubeconfig=admin.yaml --leader-elect=false --cert-dir=$state/pki
cat >$state/kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /rookery-cluster
clusterDNS: [$node]
clusterDomain: cluster.local
failSwapOn: false
oomScoreAdj: 0
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
featureGates: {SizeMemoryBackedVolumes: true} # as it always is in later releases
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
Y
start kubelet kubelet --config=$state/kubelet.yaml --kubeconfig=admin.yaml --container-runtime=remote \
    --container-runtime-endpoint=unix:///run/containerd/containerd.sock --node-ip=$node --hostname-override=one \
    --cert-dir=$state/pki --root-dir=/var/lib/kubelet
start proxy kube-proxy --kubeconfig=admin.yaml --hostname-override=one --cluster-cidr=10.88.0.0/24 --oom-score-adj=0 \
    --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
start dns python3 dns.py $node admin.yaml
until_true sh -c 'kubectl get node one | grep -q " Ready"'
until_true kubectl get serviceaccount default
