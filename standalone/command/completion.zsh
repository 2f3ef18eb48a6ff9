#compdef rejoin
_rejoin() {
	local line
	local -a whole begun
	for line in ${(f)"$(eval "$words[1]"' __complete "${(@)words[2,CURRENT]}"' 2>/dev/null)"}; do
		line=${${${line//:/\\:}/$'\t'/:}%:}
		if [[ ${line%%:*} == *= ]]; then begun+=$line; else whole+=$line; fi
	done
	if (( $#whole + $#begun )); then
		_describe rejoin whole -- begun -S ''
	else
		compset -P '--*='
		_files
	fi
}
if [[ $funcstack[1] == _rejoin ]]; then
	_rejoin "$@"
else
	compdef _rejoin rejoin
fi
