#!/usr/bin/env bash
# Brings up a Docker engine on a Debian machine that can pull no image, with stand-ins for
# the images that deploy/ begins with. The one of Go has this machine's modules, and is built
# again when they change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

engine=../shared/docker-engine.sh
go_image=golang:1.26-alpine
"$engine"
e2e/docker/haproxy-image.sh haproxy:3.0-alpine

modules=rejoin/modules:$(cat go.sum services/*/go.sum shared/go.sum | sha256sum | cut -c -16)
if ! docker image inspect "$modules" >/dev/null 2>&1; then
	docker image rm --force "$go_image" >/dev/null 2>&1 || true
	for module in services/* shared; do (cd "$module" && GOWORK=off go mod download); done
	GOWORK=off go build -o /dev/null ./deploy/cmd/credentials
fi
"$engine" "$go_image" nats:2.15-alpine gcr.io/distroless/static-debian12:nonroot
docker tag "$go_image" "$modules"
