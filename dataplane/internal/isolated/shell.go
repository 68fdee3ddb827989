// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package isolated

import (
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"casulo.dev/dataplane/internal/environment"
	"casulo.dev/dataplane/internal/process"
	"casulo.dev/dataplane/internal/shell"
)

// Descriptors of a session's shell besides the standard ones, far above those that scripts use.
const (
	textFD   = 90 // the text to run, in memory
	outputFD = 91 // where it prints
	statusFD = 92 // where the shell says how it ended
	stateFD  = 93 // variables and functions, in memory, for the shells that follow
)

// The lines that a shell executes. Nothing in a user's text can reach over into the next one. The variable
// § has a new name each time, so that no earlier text can have made it readonly.
const (
	keepState = `{ \builtin declare -p; \builtin declare -f; \builtin printf '` + stateEnd + `'; } >|/proc/self/fd/93`
	takeState = `\builtin . /proc/self/fd/93 2>/dev/null; \builtin cd -- "$PWD"; `
	settle    = `\builtin eval "${§after-}"; \builtin unset § §after; `
	atExit    = `__casulo_exit() { ` + settle + keepState + `; }; `
	readText  = `IFS= \builtin read -r -d '' § </proc/self/fd/90 && \builtin export -n § && `
	beginText = `\builtin printf '` + shell.Begun + `\n' >&92 && { `
	evalText  = `\builtin eval "$§" 0</dev/null 1>&91 2>&91 90<&- 91>&- 92>&-; }; `
	report    = `§code=$?; ` + settle + keepState +
		`; \builtin eval "\builtin printf '%s\n' $§code >&92 || \builtin exit $§code"; \builtin unset §code` + "\n"
	prepare = atExit + `\builtin trap __casulo_exit EXIT; ` + keepState + "\n"
	// The program of a shell of its own that begins where the session is. It reads the text before the
	// request's variables could change how.
	background = takeState + readText + `{ exec 90<&- 93>&-; `
)

// stateEnd is the last line of a complete state.
const stateEnd = `#\n`

// stopGrace is how long what runs in a session may take to end after SIGTERM.
const stopGrace = 2 * time.Second

// living is the living shell of a session.
type living struct{ *shell.Shell }

// identity is as whom and with which variables a session's processes run.
type identity struct {
	program    string
	credential *syscall.Credential
	variables  environment.Variables
	cwd        string
}

// startShell starts one in a world; it executes nothing before `begin`.
func startShell(supervisor *process.Supervisor, w *world, id string, as identity, state *os.File) (*living, error) {
	started, err := shell.Start(supervisor, as.credential, func(ends shell.Ends, text *os.File) process.Spec {
		return process.Spec{
			ID: id, Path: as.program, Argv: []string{"bash", "--noprofile", "--norc", "-s"}, Env: as.variables.List(),
			Dir: as.cwd, User: as.credential, Inside: w.join,
			Files: shell.Layout(map[int]*os.File{
				0: ends.Orders, 1: ends.Null, 2: ends.Null,
				textFD: text, outputFD: ends.Print, statusFD: ends.Status, stateFD: state,
			}),
		}
	})
	if err != nil {
		return nil, err
	}
	return &living{started}, nil
}

// begin makes a new shell ready, with the state of the one before if there was one.
func (sh *living) begin(restored bool) error {
	line := named(prepare, nil, "")
	if restored {
		line = takeState + line
	}
	return sh.Order(line)
}

// execute hands over a text, with variables that last as long as it runs.
func (sh *living) execute(text string, variables map[string]string) error {
	return sh.Hand(text+"\x00", named(atExit+readText+beginText, variables, evalText+report))
}

// backgroundLine is the program of a background run, with variables as execute has them.
func backgroundLine(variables map[string]string) string {
	return named(background, variables, `\builtin eval "$§"; }`)
}

// named joins lines and assignments, and gives their variable a name that no text can know before it runs.
func named(before string, variables map[string]string, after string) string {
	name := fmt.Sprintf("__casulo_%x_", rand.Uint64())
	rename := strings.NewReplacer("§", name)
	return rename.Replace(before) + assignments(name, variables) + rename.Replace(after)
}

// assignments exports variables, and notes how to restore what they were before.
func assignments(own string, variables map[string]string) string {
	var line strings.Builder
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := strings.ReplaceAll(variables[name], "'", `'\''`)
		fmt.Fprintf(&line, `%[3]safter+="\builtin unset %[1]s; ${%[1]s@A}"$'\n'; \builtin export %[1]s='%[2]s'; `, name, value, own)
	}
	return line.String()
}

func closeLogged(files ...*os.File) {
	for _, file := range files {
		if file == nil {
			continue
		}
		if err := file.Close(); err != nil {
			log.Printf("event=session_file_not_closed name=%s error=%q", file.Name(), err)
		}
	}
}
