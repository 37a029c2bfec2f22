"""``--completion-bash``: a completion script for bash, made from the option table."""

from __future__ import annotations

from collections.abc import Iterable

from mlxcel.cli.options import groups_of
from mlxcel.config.option import Option, options_of
from mlxcel.config.server import ServerConfig

_SCRIPT = """\
# bash completion of mlxcel and mlxcel-server; load it with: source <(mlxcel-server --completion-bash)
_mlxcel() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    case $before in
{values}
    esac
    if [[ ${{COMP_WORDS[0]##*/}} == mlxcel && $COMP_CWORD == 1 ]]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "{flags}" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _mlxcel mlxcel mlxcel-server
"""


def bash_completion(commands: Iterable[str]) -> str:
    """The script. Options of the server are offered after every command; those with few values offer the values."""
    options = [spec for group in groups_of(ServerConfig).values() for _, spec in options_of(group)]
    flags = sorted({flag for spec in options for flag in (*spec.flags, *spec.off_flags)} | {"--help", "--version"})
    values = "\n".join(_choices(spec) for spec in options if spec.choices)
    return _SCRIPT.format(values=values, commands=" ".join(commands), flags=" ".join(flags))


def _choices(spec: Option) -> str:
    words = " ".join(spec.choices)
    return f"        {'|'.join(spec.flags)}) COMPREPLY=($(compgen -W \"{words}\" -- \"$word\")); return ;;"
