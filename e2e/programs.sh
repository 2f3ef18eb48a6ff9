#!/usr/bin/env bash
# Checks that the programs that the tests run are installed: a browser, the proxies of
# docs/operations.md, Node and npm for the JavaScript client and third-party MCP clients,
# curl and Python for the examples. Arguments name further ones: "gcc" for the race detector.
#
# On Debian and Ubuntu it installs missing programs with apt-get, and asks first on a
# terminal. Elsewhere it prints the missing ones and the command to install them with
# Homebrew, and fails. It prints nothing when none is missing.
set -euo pipefail

# Debian keeps proxies out of the PATH of users other than root.
has() { PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null; }

missing=()
for program in caddy curl git haproxy nginx node npm python3 "$@"; do
	has "$program" || missing+=("$program")
done
has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
[ "${#missing[@]}" -gt 0 ] || exit 0
echo "The tests need programs that are not installed: ${missing[*]}" >&2

if ! has apt-get; then
	echo "Install them with your system's packages; with Homebrew: brew install ${missing[*]}" >&2
	exit 1
fi
packages=()
services=()
for program in "${missing[@]}"; do
	case $program in
	caddy | haproxy | nginx) packages+=("$program") services+=("$program") ;;
	node) packages+=(nodejs) ;;
	git) packages+=(git ca-certificates) ;;
	gcc) packages+=(gcc libc6-dev) ;;
	chromium) packages+=("$(. /etc/os-release && [ "$ID" = ubuntu ] && echo chromium-browser || echo chromium-headless-shell)") ;;
	*) packages+=("$program") ;;
	esac
done
root=()
[ "$(id -u)" = 0 ] || root=(sudo)
install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${packages[@]}")
if [ -t 0 ] && [ -t 2 ]; then
	read -r -p "Install them with ${root[*]} apt-get install ${packages[*]}? [Y/n] " answer
	case $answer in
	"" | [Yy]*) ;;
	*) exit 1 ;;
	esac
elif [ "${#root[@]}" -gt 0 ] && ! sudo -n true 2>/dev/null; then
	echo "Install them as root: apt-get install ${packages[*]}" >&2
	exit 1
fi
"${root[@]}" apt-get update
"${install[@]}"
# Debian starts each proxy that it installs, on port 80.
if [ -d /run/systemd/system ] && [ "${#services[@]}" -gt 0 ]; then
	"${root[@]}" systemctl disable --now "${services[@]}"
fi
