#!/usr/bin/env bash
# A machine within this one: a root folder of its own from Debian 12's packages, and mounts, network, processes and
# hostname of its own while it is up. Nothing is installed outside FOLDER, and all that it starts dies with its init.
#   machine.sh install | up | run COMMAND... | down        FOLDER: $ROOKERY_CLUSTER, build/cluster of this repository
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${ROOKERY_CLUSTER:-$here/../../build/cluster}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
clean=(env -i "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root LANG=C.UTF-8)

packages="containerd containernetworking-plugins runc etcd-server iptables conntrack ethtool iproute2 openssl procps
    socat buildah gcc libc6-dev"

lacks() {
    echo "$*" >&2
    exit 2
}

able() {
    [[ $(id -u) -eq 0 ]] || lacks "make test-cluster starts a Kubernetes of its own, which only root may do; run it as root."
    [[ $(uname -m) == x86_64 ]] || lacks "make test-cluster knows packages for x86_64 alone; run it on such a machine."
    for tool in apt-get dpkg-deb unshare nsenter mount ip; do
        command -v "$tool" >/dev/null || lacks "make test-cluster needs $tool: apt-get install apt dpkg util-linux iproute2."
    done
    local free
    free=$(df --output=avail -BG "$folder" | tail -1 | tr -dc 0-9)
    [[ -e $folder/share/rookery.tar ]] || ((free >= 12)) || lacks "make test-cluster needs 12 GB in $folder, which has $free; name a larger ROOKERY_CLUSTER."
    [[ -d /sys/fs/cgroup/cpu ]] ||
        lacks "Kubernetes 1.20 wants cgroups of version 1; boot with systemd.unified_cgroup_hierarchy=0."
    unshare --mount --net --pid --fork true 2>/dev/null ||
        lacks "This machine forbids namespaces of mounts, networks and processes; run make test-cluster where root has them."
}

# in the root folder, with this machine's network and certificates: for what fetches packages
online() {
    "${clean[@]}" unshare --mount --propagation private bash -euc '
        mount --bind "$0" "$0"
        for part in proc sys dev; do mount --rbind "/$part" "$0/$part"; done
        cp -L /etc/resolv.conf /etc/hosts "$0/etc/"
        mkdir -p "$0/etc/ssl/certs" "$0/old" && mount --bind /etc/ssl/certs "$0/etc/ssl/certs"
        if [[ -d $1 ]]; then mkdir -p "$0/$1" && mount --bind "$1" "$0/$1"; fi
        cd "$0" && pivot_root . old && umount -l /old # and not chroot, as buildah mounts
        export DEBIAN_FRONTEND=noninteractive
        exec "${@:2}"' "$folder/root" "${PIP_FIND_LINKS:-}" "$@"
}

install() {
    able
    local mirror=http://deb.debian.org/debian
    if [[ ! -e $folder/base/.whole ]]; then # Debian and what k8s/Dockerfile expects of its base, with nothing else
        rm -rf "$folder/base" "$folder/debootstrap" && mkdir "$folder/debootstrap"
        (cd "$folder/debootstrap" && { apt-get -qq download debootstrap 2>/dev/null || {
            apt-get update -qq && apt-get -qq download debootstrap; }; } && dpkg-deb -x debootstrap_*.deb .)
        DEBOOTSTRAP_DIR=$folder/debootstrap/usr/share/debootstrap "$folder/debootstrap/usr/sbin/debootstrap" \
            --variant=minbase --include=python3,python3-venv,ca-certificates,tini bookworm "$folder/base" "$mirror"
        touch "$folder/base/.whole"
    fi
    if [[ ! -e $folder/root/.whole ]]; then
        rm -rf "$folder/root" && cp -a "$folder/base" "$folder/root" && rm "$folder/root/.whole"
        printf '#!/bin/sh\nexit 101\n' >"$folder/root/usr/sbin/policy-rc.d" # nothing is started at installation
        chmod +x "$folder/root/usr/sbin/policy-rc.d"
        # shellcheck disable=SC2086
        online sh -euc "apt-get update -qq && apt-get install -qq --yes --no-install-recommends $(echo $packages)"
        touch "$folder/root/.whole"
    fi
}

init() { # the process 1 of the machine that comes up
    cat <<'I'
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root/share" "$root/old"
mount --bind "$2" "$root/share"
cd "$root"
pivot_root . old # and not chroot, or exec probes fail
umount -l /old
mount --make-rshared /
hostname one
echo 'nameserver 10.99.0.2' >/etc/resolv.conf
echo '127.0.0.1 localhost one' >/etc/hosts
ip link set lo up
ip link add node0 type bridge
ip addr add 10.99.0.2/24 dev node0
ip link set node0 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
touch /run/up
exec tini -s -- sleep infinity
I
}

init_process() { # its number outside, or nothing
    local outer
    outer=$(cat "$folder/machine.pid" 2>/dev/null) || return 0
    grep -qs unshare "/proc/$outer/comm" || return 0
    cat "/proc/$outer/task/$outer/children" 2>/dev/null || true
}

run() {
    local process
    process=$(init_process)
    [[ -n $process ]] || lacks "The machine is not up: tests/cluster/machine.sh up."
    # shellcheck disable=SC2086
    exec nsenter --target $process --mount --net --pid --uts --ipc --wdns=/ "${clean[@]}" "$@"
}

up() {
    down
    mkdir -p "$folder/share"
    init >"$folder/init.sh"
    "${clean[@]}" setsid unshare --mount --propagation private --net --pid --uts --ipc --fork --kill-child \
        bash -eu "$folder/init.sh" "$folder/root" "$folder/share" >"$folder/machine.log" 2>&1 </dev/null &
    echo $! >"$folder/machine.pid"
    for _ in $(seq 100); do
        (run test -e /run/up) 2>/dev/null && return
        sleep 0.1
    done
    lacks "The machine did not come up: $(tail -1 "$folder/machine.log")"
}

down() { # with process 1 go all others, the mounts and the network; groups of processes (cgroups) are left to us
    local outer
    if [[ -n $(init_process) ]]; then
        outer=$(cat "$folder/machine.pid")
        kill -9 "$outer"
        while [[ -e /proc/$outer ]]; do sleep 0.1; done
    fi
    rm -f "$folder/machine.pid"
    for _ in $(seq 50); do
        find /sys/fs/cgroup -depth -type d -path '/sys/fs/cgroup/*/rookery-cluster*' -exec rmdir {} + 2>/dev/null || true
        [[ -z $(find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -name rookery-cluster) ]] && return
        sleep 0.1
    done
    lacks "Groups of processes are left in /sys/fs/cgroup/*/rookery-cluster; look who is in them."
}

case ${1:-} in
install | up | down) "$1" ;;
run | online) "$@" ;;
*) lacks "machine.sh install | up | run COMMAND... | online COMMAND... | down" ;;
esac
