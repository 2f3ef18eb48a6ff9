module rejoin/standalone

go 1.26.0

require rejoin/shared v0.0.0

replace rejoin/shared => ../shared

require rejoin/services/web v0.0.0

replace rejoin/services/web => ../services/web

require rejoin/services/ingest v0.0.0

replace rejoin/services/ingest => ../services/ingest

require rejoin/services/sse-edge v0.0.0

replace rejoin/services/sse-edge => ../services/sse-edge

require rejoin/services/janitor v0.0.0

replace rejoin/services/janitor => ../services/janitor
