// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package session

import (
	"fmt"
	"math/rand/v2"
	"regexp"
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
	// execute says that it begins (shell.Begun) and runs the text. The verbs are the name of a variable and
	// the change of directory, or nothing.
	execute string
	// report writes the exit status, then keeps the state. A shell that cannot report exits with it.
	report string
	// restore takes over the state of an earlier shell.
	restore string
	// keep saves the state now and whenever the shell exits.
	keep string
	// startup sources the file that BASH_ENV names, which may read its input.
	startup string
	// chain and unchain surround a text that sets a trap for the shell's exit.
	chain, unchain string
}

// bash evaluates the text at top level, where functions, variables and loops mean what they mean in
// a script. Its descriptors are far above those that scripts use, and its own output and errors are
// closed: nothing that it says about our lines can reach the user. The variable that takes the text
// has a new name each time (%[1]s), so no earlier text can have made it readonly.
var bash = dialect{
	args: []string{"--noprofile", "--norc", "-s"},
	fds:  descriptors{text: 90, output: 91, status: 92, state: 93},
	execute: `IFS= \builtin read -r -d '' %[1]s </proc/self/fd/90 && \builtin export -n %[1]s && ` +
		`\builtin printf '+\n' >&92 && %[2]s\builtin eval "$%[1]s" 0</dev/null 1>&91 90<&- 91>&- 92>&- 2>&1; `,
	report: `\builtin eval "\builtin printf '%%s\n' $? >&92 || \builtin exit $?"; \builtin unset %[1]s; ` +
		`\builtin export -p >|/proc/self/fd/93`,
	restore: `\builtin . /proc/self/fd/93; \builtin cd -- "$PWD"`,
	keep: `exec >&- 2>&-; \builtin export -p >|/proc/self/fd/93; ` +
		`\builtin trap '` + saveBash + `' EXIT`,
	startup: `\builtin export BASH_ENV=%[1]s; [ -f "$BASH_ENV" ] && \builtin . "$BASH_ENV" ` +
		`0</dev/null 1>&91 90<&- 92>&- 91>&- 2>&1`,
	chain: chainTraps, unchain: `; \builtin unset -f trap`,
}

// saveBash is what a shell does last. Its errors are closed because a trap runs with those of the user.
const saveBash = `{ \builtin export -p >|/proc/self/fd/93; } 2>&-`

// chainTraps lets a trap for the shell's exit, which would replace ours, do our work as well.
const chainTraps = `trap() { [[ ${1-} != -- ]] || \builtin shift; \builtin trap "$@" || \builtin return; ` +
	`[[ $# -gt 1 && $1 != -[lpP]* && $BASHPID == "$$" && " ${@:2} " == *\ @(EXIT|exit|SIGEXIT|0)\ * ]] || \builtin return 0; ` +
	`[[ $1 != - ]] || \builtin set -- ''; \builtin trap -- "$1"$'\n''` + saveBash + `' EXIT; }; `

// settingTrap finds texts that set a trap for the shell's exit.
var settingTrap = regexp.MustCompile(`\btrap\b[\s\S]*\b(EXIT|exit|SIGEXIT|0)\b`)

// posix sources the text, because a plain sh can neither read up to a NUL byte nor name descriptors
// above 9. An error in a special builtin may end such a shell; the next run then gets a new one.
var posix = dialect{
	args:    []string{"-s"},
	fds:     descriptors{text: 9, output: 8, status: 7, state: 6},
	execute: `\printf '+\n' >&7 && %[2]s\command . /proc/self/fd/9 0</dev/null 1>&8 8>&- 7>&- 2>&1; `,
	report:  `\eval "\printf '%%s\n' $? >&7 || \exit $?"; \export -p >|/proc/self/fd/6`,
	restore: `. /proc/self/fd/6; cd -- "$PWD"`,
	keep:    `exec >&- 2>&-; export PWD; export -p >|/proc/self/fd/6; trap '{ export -p >|/proc/self/fd/6; } 2>&-' EXIT`,
	startup: `export ENV=%[1]s`,
}

// run is the line that executes a script in cwd, a path of a request, or where the shell is.
func (d *dialect) run(script, cwd string) string {
	enter, chain, unchain := "", "", ""
	if cwd != "" {
		enter = fmt.Sprintf(`cd -- %s 2>&%d >/dev/null && `, word(cwd), d.fds.output)
	}
	if settingTrap.MatchString(script) {
		chain, unchain = d.chain, d.unchain
	}
	name := fmt.Sprintf("__casulo_%x", rand.Uint64())
	line := strings.NewReplacer("%[1]s", name, "%[2]s", enter, "%%", "%")
	return chain + line.Replace(d.execute+d.report) + unchain + "\n"
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
