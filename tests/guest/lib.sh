# What commands in guests can call; each bash in a guest reads this first.
#
# $GUEST is this guest's name, a or b, $PEER the other's; $GUEST_ADDRESS and $PEER_ADDRESS are on $GUEST_DEVICE, the wire
# between them; $GUEST_RDMA is the soft-RoCE device on it. /run/guest is a folder that both guests and the host share.

# say NAME [TEXT]: tells the other guest (and oneself).
say() { printf '%s' "${2-}" >"/run/guest/said.$1.part.$GUEST" && mv "/run/guest/said.$1.part.$GUEST" "/run/guest/said.$1"; }

# hear NAME [SECONDS]: waits until somebody said it, and prints the text.
hear() {
  local until=$((SECONDS + ${2:-60}))
  while ! cat "/run/guest/said.$1" 2>/dev/null; do
    if [ $SECONDS -ge $until ]; then echo "guest $GUEST: nobody said '$1' in ${2:-60} s" >&2; return 1; fi
    sleep 0.1
  done
}

# meet NAME [SECONDS]: waits until both are here.
meet() { say "$1.$GUEST" && hear "$1.$PEER" "${2:-60}"; }

# netem delay 50ms loss 1%: what this guest sends from now on suffers that; `netem none` ends it.
netem() {
  if [ "$1" = none ]; then tc qdisc del dev "$GUEST_DEVICE" root; else tc qdisc replace dev "$GUEST_DEVICE" root netem limit 100000 "$@"; fi
}

# wire up|down
wire() { ip link set "$GUEST_DEVICE" "$1"; }

# rdma_off: takes the soft-RoCE device away and unloads its module, which waits for connections to end; rdma_on brings both back.
rdma_off() { rdma link del "$GUEST_RDMA" && modprobe -r rdma_rxe; }
rdma_on() {
  modprobe rdma_rxe && rdma link add "$GUEST_RDMA" type rxe netdev "$GUEST_DEVICE" || return
  local try
  for try in {1..100}; do
    [ "$(cat "/sys/class/infiniband/$GUEST_RDMA/ports/1/state")" != "4: ACTIVE" ] || return 0
    sleep 0.1
  done
  echo "guest $GUEST: $GUEST_RDMA does not become active" >&2
  return 1
}

# until_true SECONDS COMMAND...: tries until it succeeds.
until_true() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    if [ $SECONDS -ge $until ]; then echo "guest $GUEST: in vain: $*" >&2; return 1; fi
    sleep 0.1
  done
}

# serve ARGUMENT...: starts `forebay serve` here, waits until NAME is ready, and says `served` with its URL and fingerprint.
# Its process is $SERVER, its output /run/guest/serve.$GUEST. State is kept in the guest: a server started again is the same one.
serve() {
  "$FOREBAY_PROGRAM" serve --listen "$GUEST_ADDRESS:4433" --open --state-dir /tmp/state "$@" >"/run/guest/serve.$GUEST" 2>&1 &
  SERVER=$!
  until_true 60 grep -q '^ready: ' "/run/guest/serve.$GUEST" || { cat "/run/guest/serve.$GUEST" >&2; return 1; }
  say served "https://$GUEST_ADDRESS:4433 $(grep -o 'SHA256:[^ ]*' "/run/guest/serve.$GUEST" | head -n 1)"
}

# served: waits for the other guest's server; $URL and $FOREBAY_TRUST are what its clients need.
served() {
  read -r URL FOREBAY_TRUST < <(hear served 120; echo)
  export URL FOREBAY_TRUST
  [ -n "$FOREBAY_TRUST" ]
}
