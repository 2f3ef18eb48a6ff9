#!/usr/bin/env bash
# Makes an image of HAProxy 3.0 under the given tag from Debian's packages, for machines
# with a Docker engine that can pull no image. It does nothing when the tag exists.
set -euo pipefail
tag=$1
docker image inspect "$tag" >/dev/null 2>&1 && exit 0

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir"/{lists/partial,cache/archives/partial,debs,root/usr/{bin,sbin,lib,lib64},root/tmp}
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' >"$dir/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
	-o "Dir::State::lists=$dir/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$dir/cache"
	-o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${options[@]}" update
(cd "$dir/debs" && apt-get "${options[@]}" download haproxy libc6 libcrypt1 libgcc-s1 libjemalloc2 \
	liblua5.4-0 libopentracing1 libopentracing-c-wrapper0t64 libpcre2-8-0 libssl3t64 libstdc++6 libzstd1 zlib1g busybox-static)
for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
for link in bin sbin lib lib64; do ln -s "usr/$link" "$dir/root/$link"; done
rm -rf "$dir/root/usr/share"
ln -s busybox "$dir/root/usr/bin/wget" # for the health check, as in the real image
printf 'haproxy:x:99:99::/:/sbin/nologin\n' >"$dir/root/etc/passwd"
tar -C "$dir/root" -c . | docker import -c 'ENV PATH=/usr/sbin:/usr/bin' -c 'USER 99' - "$tag" >/dev/null
