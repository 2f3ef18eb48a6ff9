function __rejoin
	rejoin __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c rejoin -n 'string length -q -- (__rejoin)' -f -a '(__rejoin)'
