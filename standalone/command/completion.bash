_rejoin() {
	local IFS=$'\n'
	COMPREPLY=($(eval "$1"' __complete "${COMP_WORDS[@]:1:COMP_CWORD}"' 2>/dev/null | cut -f 1))
	if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
		compopt -o nospace
	fi
}
complete -o default -F _rejoin rejoin
