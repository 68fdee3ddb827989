// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"fmt"
	"strings"

	"casulo.dev/dataplane/internal/api"
)

// Descriptors of a shell besides the standard ones. User text sees only the state's, which is open
// so that a shell that exits can still write it: the others are closed for the time the text runs.
type descriptors struct {
	text   int // the text to run, in memory
	output int // where it prints
	status int // where the shell says how it ended
	state  int // exported variables, in memory, for the shell that follows this one
}

// dialect is how one kind of shell is told what to do. Each line is complete in itself, so that
// nothing in the user's text can reach over into the next one.
type dialect struct {
	args []string
	fds  descriptors
	// execute runs the text; the verb is the change of directory, or nothing.
	execute string
	// report writes the exit status, then keeps the state.
	report string
	// restore takes over the state of an earlier shell.
	restore string
	// keep saves the state now and whenever the shell exits.
	keep string
	// startup sources the file that BASH_ENV names, which may read its input.
	startup string
}

// bash evaluates the text at top level, where functions, variables and loops mean what they mean in
// a script. Its descriptors are far above those that scripts use.
var bash = dialect{
	args: []string{"--noprofile", "--norc", "-s"},
	fds:  descriptors{text: 90, output: 91, status: 92, state: 93},
	execute: `IFS= \builtin read -r -d '' __casulo </proc/self/fd/90 || \builtin :; ` +
		`\builtin export -n __casulo; %s\builtin eval "$__casulo" 0</dev/null 1>&91 2>&91 90<&- 91>&- 92>&-; `,
	report:  `\builtin printf '%s\n' "$?" >&92; \builtin unset __casulo; \builtin export -p >|/proc/self/fd/93`,
	restore: `\builtin . /proc/self/fd/93; \builtin cd -- "$PWD"`,
	keep:    `\builtin export -p >|/proc/self/fd/93; \builtin trap '\builtin export -p >|/proc/self/fd/93' EXIT`,
	startup: `\builtin export BASH_ENV=%[1]s; [ -f "$BASH_ENV" ] && \builtin . "$BASH_ENV" ` +
		`0</dev/null 1>&91 2>&91 90<&- 91>&- 92>&-`,
}

// posix sources the text, because a plain sh can neither read up to a NUL byte nor name descriptors
// above 9. An error in a special builtin may end such a shell; the next run then gets a new one.
var posix = dialect{
	args:    []string{"-s"},
	fds:     descriptors{text: 9, output: 8, status: 7, state: 6},
	execute: `%scommand . /proc/self/fd/9 0</dev/null 1>&8 2>&8 8>&- 7>&-; `,
	report:  `printf '%s\n' "$?" >&7; export -p >|/proc/self/fd/6`,
	restore: `. /proc/self/fd/6; cd -- "$PWD"`,
	keep:    `export PWD; export -p >|/proc/self/fd/6; trap 'export -p >|/proc/self/fd/6' EXIT`,
	startup: `export ENV=%[1]s`,
}

// run is the line that executes the text in cwd, a path of a request, or where the shell is.
func (d *dialect) run(cwd string) string {
	enter := ""
	if cwd != "" {
		enter = fmt.Sprintf(`cd -- %s 2>&%d >/dev/null && `, word(cwd), d.fds.output)
	}
	return fmt.Sprintf(d.execute, enter) + d.report + "\n"
}

// text is what the text descriptor has to hold for a script.
func (d *dialect) text(script string) string {
	if d == &bash {
		return script + "\x00"
	}
	return script + "\n"
}

// prepare is what a new shell executes first.
func (d *dialect) prepare(startup string, restored bool) string {
	lines := ""
	if restored {
		lines = d.restore + "\n"
	}
	lines += d.keep + "\n"
	if startup != "" {
		lines += fmt.Sprintf(d.startup, quote(startup)) + "\n"
	}
	return lines
}

// quote makes text one literal word for a shell.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// word is quote for a path whose leading ~ and variables the shell shall expand.
func word(path string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = "${HOME}" + path[1:]
	}
	var out strings.Builder
	for path != "" {
		literal, name, rest := api.CutVariable(path)
		if literal != "" {
			out.WriteString(quote(literal))
		}
		if name != "" {
			out.WriteString(`"${` + name + `-}"`)
		}
		path = rest
	}
	return out.String()
}
