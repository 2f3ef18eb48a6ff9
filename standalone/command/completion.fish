function __rejoin
	set -l words (commandline -opc) (commandline -ct)
	eval $words[1] __complete '$words[2..]' 2>/dev/null
end
complete -c rejoin -n 'string length -q -- (__rejoin)' -f -a '(__rejoin)'
