module rejoin/services/janitor

go 1.26.0

require rejoin/shared v0.0.0

replace rejoin/shared => ../../shared

require rejoin/services/web v0.0.0

replace rejoin/services/web => ../web
