// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// carried is a variable of an earlier cell: its type as Go text, and its value in gob form. Without
// data it has the zero value.
type carried struct {
	name, typ string
	data      []byte
}

// goImport is an import of an earlier cell.
type goImport struct {
	name, path string
}

// goMemory is what cells of a Go context leave behind.
type goMemory struct {
	imports      []goImport
	declarations []chunk
	variables    []carried
	lost         map[string]string // variables that could not be carried, and their types
}

// goProgram is a cell as a program of its own.
type goProgram struct {
	memory  goMemory
	cell    int
	main    []chunk
	user    *chunk // the cell's own main
	shown   *chunk
	saves   []string
	imports []goImport
}

// program lays out a cell over what is remembered. The memory changes only once the cell compiled.
func (m goMemory) program(code string, cell int) *goProgram {
	p := &goProgram{memory: m.clone(), cell: cell}
	chunks := cutGo(code, cell)
	for i, c := range chunks {
		switch c.kind {
		case chunkPackage:
		case chunkImport:
			p.memory.addImports(c.text)
		case chunkMain:
			p.user = &chunks[i]
		case chunkVariable:
			if len(p.main) == 0 {
				p.memory.declare(c)
				p.saves = append(p.saves, c.names...)
				continue
			}
			p.main = append(p.main, c)
			p.saves = append(p.saves, c.names...)
		case chunkDeclaration:
			p.memory.declare(c)
		case chunkStatement:
			p.main = append(p.main, c)
			p.saves = append(p.saves, c.names...)
		}
	}
	if n := len(p.main); n > 0 && isShown(p.main[n-1].text) {
		last := p.main[n-1]
		p.shown, p.main = &last, p.main[:n-1]
	}
	return p
}

func (m goMemory) clone() goMemory {
	lost := map[string]string{}
	for name, typ := range m.lost {
		lost[name] = typ
	}
	return goMemory{slices.Clone(m.imports), slices.Clone(m.declarations), slices.Clone(m.variables), lost}
}

// declare takes a declaration in, in place of earlier ones of the same names.
func (m *goMemory) declare(c chunk) {
	m.declarations = slices.DeleteFunc(m.declarations, func(old chunk) bool { return overlap(old.names, c.names) })
	m.forget(c.names)
	m.declarations = append(m.declarations, c)
}

func (m *goMemory) forget(names []string) {
	m.variables = slices.DeleteFunc(m.variables, func(v carried) bool { return slices.Contains(names, v.name) })
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}

func (m *goMemory) addImports(text string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.ImportsOnly)
	if err != nil {
		// A broken import is told by the compiler, which sees it as a declaration.
		m.declarations = append(m.declarations, chunk{kind: chunkImport, text: text})
		return
	}
	for _, spec := range file.Imports {
		name, quoted := "", spec.Path.Value
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if unquoted, err := strconv.Unquote(quoted); err == nil {
			m.addImport(goImport{name, unquoted})
		}
	}
}

func (m *goMemory) addImport(added goImport) {
	m.imports = slices.DeleteFunc(m.imports, func(old goImport) bool { return old.local() == added.local() })
	m.imports = append(m.imports, added)
}

var versionSuffix = regexp.MustCompile(`^v\d+$`)

// local is the name by which code refers to the package, as far as its path tells.
func (i goImport) local() string {
	if i.name != "" {
		return i.name
	}
	base := path.Base(i.path)
	if versionSuffix.MatchString(base) {
		base = path.Base(path.Dir(i.path))
	}
	return base
}

// text writes the program. Line directives let the compiler and panics speak of cells.
func (p *goProgram) text() string {
	var body strings.Builder
	for _, c := range p.memory.declarations {
		writeChunk(&body, c)
	}
	for _, v := range p.memory.variables {
		fmt.Fprintf(&body, "//line casulo.go:1\nvar %s %s\n", v.name, v.typ)
	}
	if p.user != nil {
		user := *p.user
		user.text = strings.Replace(user.text, "main", "casuloMain", 1)
		writeChunk(&body, user)
	}
	p.writeMain(&body)
	var out strings.Builder
	out.WriteString("package main\n\n")
	for _, each := range p.used(body.String()) {
		fmt.Fprintf(&out, "import %s %s\n", each.name, strconv.Quote(each.path))
	}
	return out.String() + body.String()
}

// standardPackages are imported for cells that use them without saying so.
var standardPackages = map[string]string{
	"base64": "encoding/base64", "bufio": "bufio", "bytes": "bytes", "context": "context", "csv": "encoding/csv",
	"errors": "errors", "filepath": "path/filepath", "fmt": "fmt", "http": "net/http", "io": "io",
	"json": "encoding/json", "log": "log", "maps": "maps", "math": "math", "os": "os", "rand": "math/rand",
	"regexp": "regexp", "slices": "slices", "sort": "sort", "strconv": "strconv", "strings": "strings",
	"sync": "sync", "time": "time", "unicode": "unicode", "utf8": "unicode/utf8",
}

var undefinedName = regexp.MustCompile(`undefined: (\w+)`)

// mended reports whether a program that the compiler refused is worth another try: its last
// expression turned out to have no value, or it uses well-known packages without importing them.
func (p *goProgram) mended(told string) bool {
	if p.shown != nil && strings.Contains(told, "used as value") {
		p.main, p.shown = append(p.main, *p.shown), nil
		return true
	}
	found := false
	for _, match := range undefinedName.FindAllStringSubmatch(told, -1) {
		path, known := standardPackages[match[1]]
		added := goImport{path: path}
		if known && !slices.Contains(p.memory.imports, added) {
			p.memory.addImport(added)
			found = true
		}
	}
	return found
}

func writeChunk(out *strings.Builder, c chunk) {
	fmt.Fprintf(out, "//line cell-%d:%d\n%s\n", c.cell, c.line, c.text)
}

func (p *goProgram) writeMain(out *strings.Builder) {
	out.WriteString("//line casulo.go:1\nfunc main() {\n")
	if len(p.memory.variables) > 0 {
		out.WriteString("casuloReceive()\n")
	}
	for _, v := range p.memory.variables {
		fmt.Fprintf(out, "casuloRestore(%q, &%s)\n", v.name, v.name)
	}
	for _, c := range p.main {
		writeChunk(out, c)
	}
	if p.user != nil {
		out.WriteString("//line casulo.go:1\ncasuloMain()\n")
	}
	if p.shown != nil {
		fmt.Fprintf(out, "//line cell-%d:%d\ncasuloShow(%s)\n", p.shown.cell, p.shown.line, p.shown.text)
	}
	out.WriteString("//line casulo.go:1\n")
	for _, name := range p.kept() {
		fmt.Fprintf(out, "casuloSave(%q, &%s)\n", name, name)
	}
	out.WriteString("}\n")
}

// kept are the variables whose values are sent back: the carried ones, and those of this cell.
func (p *goProgram) kept() []string {
	var names []string
	for _, v := range p.memory.variables {
		names = append(names, v.name)
	}
	for _, name := range p.saves {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// used are the imports that the program mentions: Go refuses all others.
func (p *goProgram) used(body string) []goImport {
	mentioned := map[string]bool{}
	file, _ := parser.ParseFile(token.NewFileSet(), "", "package main\n"+body, parser.SkipObjectResolution)
	if file != nil {
		ast.Inspect(file, func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				if base, ok := selector.X.(*ast.Ident); ok {
					mentioned[base.Name] = true
				}
			}
			return true
		})
	}
	var used []goImport
	for _, each := range p.memory.imports {
		if mentioned[each.local()] || each.name == "_" || each.name == "." {
			used = append(used, each)
		}
	}
	return used
}

// remember takes over what the program sent back. Functions are carried by their text; what else
// cannot be carried is remembered as lost.
func (p *goProgram) remember(saved []frame) goMemory {
	m := p.memory
	for _, f := range saved {
		name, typ := f.field(1), f.field(2)
		m.forget([]string{name})
		delete(m.lost, name)
		if f.field(4) == "yes" {
			m.addImportsOf(f.field(5))
			m.undeclare(name)
			m.variables = append(m.variables, carried{name: name, typ: typ, data: bytes.Clone(f[3])})
		}
	}
	// Only now, for what is carried takes the declaration along that it shares with others.
	for _, f := range saved {
		if name := f.field(1); f.field(4) != "yes" && !p.carriesText(&m, name) {
			m.lost[name] = f.field(2)
		}
	}
	return m
}

func (m *goMemory) addImportsOf(list string) {
	for each := range strings.FieldsSeq(list) {
		m.addImport(goImport{path: each})
	}
}

// undeclare drops the declaration of a variable whose value is known now.
func (m *goMemory) undeclare(name string) {
	m.declarations = slices.DeleteFunc(m.declarations, func(c chunk) bool {
		return c.kind == chunkVariable && slices.Contains(c.names, name)
	})
}

// carriesText keeps a variable by the text that made it, where running that again is harmless.
func (p *goProgram) carriesText(m *goMemory, name string) bool {
	for _, c := range m.declarations {
		if c.kind == chunkVariable && slices.Contains(c.names, name) {
			return true
		}
	}
	for _, c := range p.main {
		if slices.Equal(c.names, []string{name}) && functionLiteral(c.text) {
			text := strings.Replace(c.text, ":=", "=", 1)
			m.declare(chunk{kind: chunkVariable, text: "var " + text, line: c.line, cell: c.cell, names: c.names})
			return true
		}
	}
	return false
}
