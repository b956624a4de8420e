// hearth completion: the scripts are small, because `hearth complete` knows the words.
#include "cli/args.h"
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>

// bash has taken "a=b" apart and replaces only what stands behind the "=".
static const char bash_script[] =
    "# bash completion of hearth: hearth itself is asked what fits (hearth complete)\n"
    "_hearth() {\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT} word meaning before path\n"
    "    [[ $current == = ]] && current=\n"
    "    before=${line##*[[:space:]]}\n"
    "    before=${before%\"$current\"}\n"
    "    COMPREPLY=()\n"
    "    while IFS=$'\\t' read -r word meaning; do\n"
    "        case $word in\n"
    "        :folders)\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while read -r path; do COMPREPLY+=(\"$path\"); done < <(compgen -d -- \"$current\") ;;\n"
    "        :files*)\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while read -r path; do\n"
    "                if [[ -d $path || $path == *\"${word#:files}\" || $path == *\"${word#:files }\" ]]; then\n"
    "                    COMPREPLY+=(\"$path\")\n"
    "                fi\n"
    "            done < <(compgen -f -- \"$current\") ;;\n"
    "        *) COMPREPLY+=(\"${word#\"$before\"}\") ;;\n"
    "        esac\n"
    "    done < <(\"${1/#\\~/$HOME}\" complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
    "    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi\n"
    "    return 0\n"
    "}\n"
    "complete -F _hearth hearth\n";

static const char zsh_script[] =
    "#compdef hearth\n"
    "# zsh completion of hearth: hearth itself is asked what fits (hearth complete)\n"
    "_hearth() {\n"
    "    local word meaning\n"
    "    local -a whole open\n"
    "    while IFS=$'\\t' read -r word meaning; do\n"
    "        case $word in\n"
    "        :folders) compset -P '*='; _files -/ ;;\n"
    "        :files) compset -P '*='; _files ;;\n"
    "        :files*) _files -g \"*${word#:files }(-.)\" ;;\n"
    "        *=) open+=(\"${word//:/\\\\:}:$meaning\") ;;\n"
    "        *) whole+=(\"${word//:/\\\\:}:$meaning\") ;;\n"
    "        esac\n"
    "    done < <(${~words[1]} complete \"${(@)words[2,CURRENT-1]}\" \"$PREFIX\" 2>/dev/null)\n"
    "    (( $#whole )) && _describe hearth whole\n"
    "    (( $#open )) && _describe hearth open -S ''\n"
    "    return 0\n"
    "}\n"
    "if [[ $funcstack[1] == _hearth ]]; then _hearth \"$@\"; else compdef _hearth hearth; fi\n";

static Status completion_print(int argc, char **argv, const char *usage, const char *summary, const char *script) {
    ArgList words;
    bool helped;
    const ArgCommand command = {.usage = usage, .summary = summary};
    TRY(args_parse(&command, argc, argv, &words, &helped));
    free(words.items);
    if (!helped) fputs(script, stdout);
    return NULL;
}

static Status completion_bash(int argc, char **argv) {
    return completion_print(
        argc, argv, "hearth completion bash",
        "Prints what completes hearth's command lines in bash. `make install` has put it where bash\n"
        "finds it; for one shell: source <(hearth completion bash)",
        bash_script);
}

static Status completion_zsh(int argc, char **argv) {
    return completion_print(
        argc, argv, "hearth completion zsh",
        "Prints what completes hearth's command lines in zsh, after compinit. `make install` has put it\n"
        "beside zsh's own; for one shell: source <(hearth completion zsh)",
        zsh_script);
}

Status cmd_completion(int argc, char **argv) {
    static const Command table[] = {{"bash", "for bash 4 and later", completion_bash},
                                    {"zsh", "for zsh, after compinit", completion_zsh}};
    return commands_run("hearth completion", "hearth completion prints a script that completes command lines.", table,
                        2, argc, argv);
}
