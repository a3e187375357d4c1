#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Help: every verb describes itself with exit status and examples, and every option that it shows is accepted.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

shown=0
"$command" --version | grep -Eqx 'b200opt [0-9]+\.[0-9]+\.[0-9]+' || fail "--version: $("$command" --version)"
"$command" --help >overview || fail "--help: exit status"
for verb in run dryrun report trace replay compare ab doctor lint sagemaker; do
  grep -q "^  $verb " overview || fail "--help does not name $verb"
  "$command" $verb --help >help 2>err || fail "$verb --help: exit status"
  [ ! -s err ] || fail "$verb --help writes to stderr"
  grep -q '^EXIT STATUS$' help || fail "$verb --help: no EXIT STATUS"
  grep -q '^EXAMPLES$' help || fail "$verb --help: no EXAMPLES"
  awk 'length > 80 { exit 1 }' help || fail "$verb --help: a line is longer than 80 columns"
  # Behind the options the lines are broken by hand: no width breaks them once more.
  sed '0,/corresponding short options/d' help >sections
  ARGP_HELP_FMT=rmargin=200 "$command" $verb --help | sed '0,/corresponding short options/d' | cmp -s - sections ||
    fail "$verb --help: a line is too long and is broken in its middle"
  "$command" $verb --version | grep -q '^b200opt ' || fail "$verb --version"
  # An option that is known gives another message than an unknown one.
  for option in $(grep -E '^ +(-., )? *--' help | grep -oE -- '--[a-z]+' | sort -u); do
    case $option in
    --help | --version) continue ;;
    esac
    shown=$((shown + 1))
    "$command" $verb $option 2>&1 </dev/null | grep -q "unrecognized option" && fail "$verb does not know its $option"
  done
done
[ "$shown" = 45 ] || fail "the verbs show $shown options, not 45"
"$command" run --no-such-option 2>&1 | grep -q "unrecognized option '--no-such-option'" || fail "unknown options are not found"

[ "$failed" = 0 ] || echo "$failed failed"
exit "$((failed > 0))"
