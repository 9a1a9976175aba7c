#!/bin/bash
# Shapes against each other: 3 hosts of 4 ranks as network namespaces on a switch, 200 Mbit/s at both ends of every cable.
#
#     sudo benches/topology/shapes.sh target/release/phalanx [SIZE] [SHAPE...]
#
# Prints for each shape, and for the flat ring, the median time of an allreduce of f32 and the bytes that left the fullest host. The namespaces are
# its own and go when it ends, however it does.
set -e
phalanx=$(realpath "${1:-target/release/phalanx}"); size=${2:-16M}; shift 2 || shift $#
shapes=${*:-4x3 2x2x3 2x6 12 6x2 3x4 ring}
rate=${RATE:-200mbit}
p=phxt$$; switch=${p}s; hosts=(${p}a ${p}b ${p}c)
enter=$(mktemp)
cleanup() { for n in "${hosts[@]}" "$switch"; do ip netns del "$n" 2>/dev/null || true; done; rm -f "$enter"; }
trap cleanup EXIT

ip netns add "$switch"
ip -n "$switch" link add br0 type bridge
ip -n "$switch" link set br0 up
for i in 0 1 2; do
    h=${hosts[$i]}
    ip netns add "$h"
    ip -n "$switch" link add "v$i" type veth peer name eth0 netns "$h"
    ip -n "$switch" link set "v$i" master br0 up
    ip -n "$h" addr add "10.198.0.$((10 + i))/24" dev eth0
    ip -n "$h" link set eth0 up
    ip -n "$h" link set lo up
    tc -n "$h" qdisc replace dev eth0 root tbf rate "$rate" burst 128kb latency 200ms
    tc -n "$switch" qdisc replace dev "v$i" root tbf rate "$rate" burst 128kb latency 200ms
done
cat > "$enter" <<'END'
#!/bin/sh
host=$1; shift
exec nsenter --net=/run/netns/$host unshare --uts sh -c "hostname $host; exec $*"
END
chmod 700 "$enter"

sent() { ip -n "$1" -s link show eth0 | awk '/TX:/ { getline; print $1 }'; }
printf '%-8s %s\n' shape "what phalanx bench says"
for shape in $shapes; do
    if [ "$shape" = ring ]; then words="PHALANX_ALGORITHM=ring"; else words="PHALANX_ALGORITHM=tiers PHALANX_TIERS=$shape"; fi
    before=$(sent "${hosts[1]}")
    line=$(env $words PHALANX_ENCRYPT=never nsenter --net=/run/netns/"${hosts[0]}" "$phalanx" bench -np 12 \
        -H "${hosts[0]}:4,${hosts[1]}:4,${hosts[2]}:4" --no-bind --json --seconds "${SECONDS_EACH:-3}" \
        --op allreduce --dtype f32 --sizes "$size" --rsh "$enter {host}" | tail -1)
    printf '%-8s %s nic_bytes=%s\n' "$shape" "$line" "$(($(sent "${hosts[1]}") - before))"
done
