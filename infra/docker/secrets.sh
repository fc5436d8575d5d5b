#!/usr/bin/env bash
# The secrets of compose.yaml: see `infra/docker/secrets.sh --help`.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: infra/docker/secrets.sh

Makes what compose.yaml keeps secret, each in a file below infra/docker/secrets, which only you can
look into; what is there already stays as it is. Nothing of it is shown.

  database_password, ray_token, grafana_password         random
  object_store_keys.json, object_store_credentials       the object store's key, for it and its users
  api_keys.json, client_key, prometheus_key              keys of the server, for clients and Prometheus
TEXT
}

case ${1:-} in
"") ;;
--help | -h)
  usage
  exit
  ;;
*)
  echo "error: '$1' is no option; see --help" >&2
  exit 2
  ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${BERTLINE_SECRETS:-$root/infra/docker/secrets}
mkdir -p "$folder"
chmod 700 "$folder"

# The folder is private; its files are readable, because services run as other users.
umask 022

random() {
  od -An -N "$1" -t x1 /dev/urandom | tr -d ' \n'
}

# Written to a temporary name first, so that files are complete.
keep() {
  cat >"$folder/$1.new"
  mv "$folder/$1.new" "$folder/$1"
}

for name in database_password ray_token grafana_password; do
  [[ -s $folder/$name ]] || random 32 | keep "$name"
done

if [[ ! -s $folder/object_store_credentials ]]; then
  key=$(random 10) secret=$(random 32)
  keep object_store_keys.json <<JSON
{"identities": [{"name": "bertline",
  "credentials": [{"accessKey": "$key", "secretKey": "$secret"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
JSON
  keep object_store_credentials <<INI
[default]
aws_access_key_id = $key
aws_secret_access_key = $secret
INI
fi

# A key of the server, created by the checkout's environment or by the image.
new_key() {
  if [[ -x $root/.venv/bin/python ]]; then
    (cd "$root" && .venv/bin/python -m serving.new_key "$1" --file "$folder/api_keys.json" --scope "$2")
  else
    docker run --rm --user "$(id -u):$(id -g)" --volume "$folder:/secrets" bertline-cpu:0.1.0 \
      python -m serving.new_key "$1" --file /secrets/api_keys.json --scope "$2"
  fi
}

# Each of the three needs the others.
if [[ ! -s $folder/api_keys.json || ! -s $folder/client_key || ! -s $folder/prometheus_key ]]; then
  rm -f "$folder/api_keys.json"
  new_key client predict | tr -d '\n' | keep client_key
  new_key prometheus admin | tr -d '\n' | keep prometheus_key
  chmod 644 "$folder/api_keys.json"
fi

echo "secrets   $folder"
