#!/usr/bin/env bash
# A fleet over several machines, by hand: make a secret, start a station on each machine, ask from anywhere.
# examples/multi-machine.md explains every step.
#
#   two_machines.sh token                                  once; copy the file to every machine
#   two_machines.sh station NAME ROLES HOST:PORT           on each machine that carries a part
#   two_machines.sh ask URL[,URL…] PROMPT [OPTION …]       on any machine that reaches all of them
#
# Environment: MODEL (smollm2), TOKEN_FILE (fleet.token), KERNELS (fast); for TLS: TLS_CERT and TLS_KEY of the station,
# TLS_CA to trust the others by. Without a certificate the links are not encrypted: for networks you trust.
set -euo pipefail

MODEL=${MODEL:-smollm2}
TOKEN_FILE=${TOKEN_FILE:-fleet.token}
KERNELS=${KERNELS:-fast}

case "${1:-}" in
token)
  umask 077
  head -c 32 /dev/urandom | base64 | tr -d '=\n' | tr '+/' '-_' >"$TOKEN_FILE"
  echo "secret written to $TOKEN_FILE" >&2
  ;;
station)
  links=(--insecure)
  if [ -n "${TLS_CERT:-}" ]; then
    links=(--tls-cert "$TLS_CERT" --tls-key "${TLS_KEY:?TLS_CERT needs TLS_KEY}" ${TLS_CA:+--tls-ca "$TLS_CA"})
  fi
  exec aeonflow station --model "$MODEL" --kernels "$KERNELS" --name "$2" --roles "$3" --listen "$4" \
    --token-file "$TOKEN_FILE" "${links[@]}"
  ;;
ask)
  exec aeonflow run --fleet "$2" --token-file "$TOKEN_FILE" ${TLS_CA:+--tls-ca "$TLS_CA"} "${@:4}" -- "$3"
  ;;
*)
  sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
  ;;
esac
