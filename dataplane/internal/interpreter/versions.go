// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"casulo.dev/dataplane/internal/environment"
)

// toolchain is how an interpreter is found in an image, and one of several versions of it.
type toolchain struct {
	title    string
	variable string   // chooses a version
	names    []string // on PATH, the preferred first
	fallback []string // patterns of programs that are not on PATH
	versions []string // patterns of programs of one version each, with that version in the path
	ask      []string // arguments that make it tell its version
	remedy   string
}

var (
	python = toolchain{
		title: "Python", variable: "PYTHON_VERSION", names: []string{"python3", "python"},
		versions: []string{
			"/opt/python/versions/*/bin/python3", "/usr/local/bin/python3.*", "/usr/bin/python3.*",
			"/opt/python/*/bin/python3",
		},
		ask: []string{"--version"}, remedy: "install python3 (3.8 or newer) in the image",
	}
	node = toolchain{
		title: "Node.js", variable: "NODE_VERSION", names: []string{"node", "nodejs"},
		fallback: []string{"/opt/node/*/bin/node"},
		versions: []string{"/opt/node/*/bin/node", "/usr/local/nvm/versions/node/*/bin/node"},
		ask:      []string{"--version"}, remedy: "install Node.js (18 or newer) in the image",
	}
	java = toolchain{
		title: "a JDK", variable: "JAVA_VERSION", names: []string{"java"},
		fallback: []string{"/usr/lib/jvm/*/bin/java", "/opt/java/*/bin/java"},
		versions: []string{"/usr/lib/jvm/*/bin/java", "/opt/java/*/bin/java"},
		ask:      []string{"-version"}, remedy: "install a JDK (11 or newer, with the module jdk.jshell) in the image",
	}
	golang = toolchain{
		title: "Go", variable: "GO_VERSION", names: []string{"go"},
		fallback: []string{"/usr/local/go/bin/go", "/opt/go/*/bin/go", "/usr/lib/go*/bin/go"},
		versions: []string{"/opt/go/*/bin/go", "/usr/lib/go-*/bin/go"},
		ask:      []string{"version"}, remedy: "install Go in the image",
	}
)

// find chooses the program: that of the version which the environment asks for, else the one on PATH.
func (t *toolchain) find(l launch) (string, error) {
	wanted := strings.TrimSpace(l.variables[t.variable])
	usual := t.usual(l.variables)
	if wanted == "" {
		if usual == "" {
			return "", fmt.Errorf("%s was not found in the image: %s", t.title, t.remedy)
		}
		return usual, nil
	}
	found := t.installed()
	for _, each := range found {
		if matches(each.version, wanted) {
			return each.path, nil
		}
	}
	if usual != "" {
		told := t.told(l, usual)
		if matches(told, wanted) {
			return usual, nil
		}
		found = append(found, installation{told, usual})
	}
	return "", t.missing(wanted, found)
}

func (t *toolchain) missing(wanted string, found []installation) error {
	var there []string
	for _, each := range found {
		known := func(version string) bool { return matches(version, each.version) }
		if each.version != "" && !slices.ContainsFunc(there, known) {
			there = append(there, each.version)
		}
	}
	if len(there) == 0 {
		return fmt.Errorf("%s is %s, but %s was not found in the image: %s", t.variable, wanted, t.title, t.remedy)
	}
	return fmt.Errorf("%s is %s, but of %s the image has only %s", t.variable, wanted, t.title, strings.Join(there, ", "))
}

func (t *toolchain) usual(variables environment.Variables) string {
	for _, name := range t.names {
		if path, err := variables.Program(name); err == nil {
			return path
		}
	}
	for _, pattern := range t.fallback {
		if found := programs(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

type installation struct {
	version, path string
}

// oldJava is how Java 8 called itself 1.8, and Debian's folders still do so with later ones.
const oldJava = "java-1."

// numberInPath finds the version in a name such as cpython-3.12.4-linux, java-17-openjdk or go1.25.
var numberInPath = regexp.MustCompile(`\d+(\.\d+)*`)

// installed lists the versions that have a place of their own.
func (t *toolchain) installed() []installation {
	var found []installation
	for _, pattern := range t.versions {
		for _, path := range programs(pattern) {
			part := path
			if star := strings.Index(pattern, "*"); !strings.HasSuffix(pattern, "*") {
				part, _, _ = strings.Cut(path[star:], "/")
			} else {
				part = filepath.Base(path)
			}
			part = strings.Replace(part, oldJava, "java-", 1)
			if version := numberInPath.FindString(part); version != "" {
				found = append(found, installation{version, path})
			}
		}
	}
	return found
}

// programs are the executable files that a pattern names.
func programs(pattern string) []string {
	// The patterns are constants: a malformed one would be found by any test.
	names, _ := filepath.Glob(pattern)
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Stat(name)
		last := name[len(name)-1]
		return err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 ||
			strings.HasPrefix(filepath.Base(name), "python3.") && (last < '0' || last > '9')
	})
}

// matches compares as many parts as both have: 3.12 asks for any 3.12.x, and 3.12.4 accepts a
// place that only calls itself 3.12.
func matches(version, wanted string) bool {
	have, want := parts(version), parts(wanted)
	if len(have) == 0 || len(want) == 0 {
		return false
	}
	for i := range min(len(have), len(want)) {
		if have[i] != want[i] {
			return false
		}
	}
	return true
}

func parts(version string) []int {
	var numbers []int
	for part := range strings.SplitSeq(numberInPath.FindString(version), ".") {
		if number, err := strconv.Atoi(part); err == nil {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// told asks a program for its version.
func (t *toolchain) told(l launch, path string) string {
	var text transcript
	c, err := startChild(l.service.supervisor, l.id, childSpec{
		sink: text.add, path: path, argv: append([]string{path}, t.ask...), env: l.variables.List(), dir: l.dir,
		user: l.identity.Credential, at: usual,
	})
	if err != nil {
		return ""
	}
	defer c.end()
	<-c.process.Done()
	c.drain()
	return numberInPath.FindString(text.String())
}
