// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package interpreter

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"strings"
)

// chunkKind tells what a piece of a Go cell is.
type chunkKind int

const (
	chunkStatement chunkKind = iota
	chunkImport
	chunkDeclaration // func, type, const
	chunkVariable
	chunkMain
	chunkPackage
)

// chunk is one top-level declaration or statement of a cell.
type chunk struct {
	kind chunkKind
	text string
	line int // in its cell, from 1
	cell int
	// names are what it declares; a method's is "Type.Name".
	names []string
}

// cutGo splits a cell where semicolons, written or implied, stand outside of all brackets.
func cutGo(code string, cell int) []chunk {
	source := []byte(code)
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var lexer scanner.Scanner
	lexer.Init(file, source, nil, 0)
	var chunks []chunk
	var kinds []token.Token
	start, depth := -1, 0
	for {
		position, kind, _ := lexer.Scan()
		offset := file.Offset(position)
		if kind == token.SEMICOLON && depth == 0 || kind == token.EOF {
			if start >= 0 && len(kinds) > 0 {
				text := code[start:offset]
				chunks = append(chunks, chunk{
					kind: classify(kinds), text: text, line: file.Line(file.Pos(start)), cell: cell,
				})
			}
			if kind == token.EOF {
				return named(chunks)
			}
			start, kinds = -1, nil
			continue
		}
		if start < 0 {
			start = offset
		}
		switch kind {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		}
		kinds = append(kinds, kind)
	}
}

// classify looks at the first tokens of a chunk.
func classify(kinds []token.Token) chunkKind {
	switch kinds[0] {
	case token.PACKAGE:
		return chunkPackage
	case token.IMPORT:
		return chunkImport
	case token.TYPE, token.CONST:
		return chunkDeclaration
	case token.VAR:
		return chunkVariable
	case token.FUNC:
		if isFunctionDeclaration(kinds) {
			return chunkDeclaration
		}
	}
	return chunkStatement
}

// isFunctionDeclaration tells a function or a method from a function literal that is called at once.
func isFunctionDeclaration(kinds []token.Token) bool {
	if len(kinds) > 1 && kinds[1] == token.IDENT {
		return true
	}
	depth := 0
	for i := 1; i < len(kinds); i++ {
		switch kinds[i] {
		case token.LPAREN:
			depth++
		case token.RPAREN:
			depth--
		}
		if depth == 0 {
			// Behind a receiver comes the name of the method and its parameters.
			return i+2 < len(kinds) && kinds[i+1] == token.IDENT && kinds[i+2] == token.LPAREN
		}
	}
	return false
}

// named fills in what each chunk declares, and finds the program's own main.
func named(chunks []chunk) []chunk {
	for i := range chunks {
		c := &chunks[i]
		switch c.kind {
		case chunkDeclaration, chunkVariable:
			c.names = declaredNames(c.text)
			if len(c.names) == 1 && c.names[0] == "main" && strings.HasPrefix(c.text, "func") {
				c.kind = chunkMain
			}
		case chunkStatement:
			c.names = assignedNames(c.text)
		}
	}
	return chunks
}

func declaredNames(text string) []string {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.SkipObjectResolution)
	if err != nil || file == nil {
		// The compiler says better what is wrong.
		return nil
	}
	var names []string
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			names = append(names, functionName(d))
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				names = append(names, specNames(spec)...)
			}
		}
	}
	return names
}

func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	receiver := d.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	switch r := receiver.(type) {
	case *ast.IndexExpr:
		receiver = r.X
	case *ast.IndexListExpr:
		receiver = r.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

func specNames(spec ast.Spec) []string {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return []string{s.Name.Name}
	case *ast.ValueSpec:
		return identifiers(s.Names)
	}
	return nil
}

func identifiers(list []*ast.Ident) []string {
	var names []string
	for _, name := range list {
		if name.Name != "_" {
			names = append(names, name.Name)
		}
	}
	return names
}

// statement parses a chunk as what stands in a function.
func statement(text string) ast.Stmt {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+text+"\n}", parser.SkipObjectResolution)
	if err != nil || len(file.Decls) != 1 {
		return nil
	}
	body := file.Decls[0].(*ast.FuncDecl).Body.List
	if len(body) != 1 {
		return nil
	}
	return body[0]
}

// assignedNames are the variables that a statement declares.
func assignedNames(text string) []string {
	assignment, ok := statement(text).(*ast.AssignStmt)
	if !ok || assignment.Tok != token.DEFINE {
		return nil
	}
	var list []*ast.Ident
	for _, left := range assignment.Lhs {
		if name, ok := left.(*ast.Ident); ok {
			list = append(list, name)
		}
	}
	return identifiers(list)
}

// functionLiteral reports whether a statement only names a function, whose text can be carried.
func functionLiteral(text string) bool {
	assignment, ok := statement(text).(*ast.AssignStmt)
	if !ok || assignment.Tok != token.DEFINE || len(assignment.Rhs) != 1 {
		return false
	}
	_, ok = assignment.Rhs[0].(*ast.FuncLit)
	return ok
}

// printers are packages whose calls are made for what they do, not for what they return.
var printers = map[string]bool{"fmt": true, "log": true, "slog": true, "os": true, "time": true}

// isShown reports whether a chunk is an expression whose value is the cell's result.
func isShown(text string) bool {
	expression, err := parser.ParseExpr(text)
	if err != nil {
		return false
	}
	call, ok := expression.(*ast.CallExpr)
	if !ok {
		return true
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name != "panic" && f.Name != "print" && f.Name != "println" && f.Name != "close"
	case *ast.SelectorExpr:
		base, ok := f.X.(*ast.Ident)
		return !ok || !printers[base.Name] || strings.HasPrefix(f.Sel.Name, "Sprint") ||
			base.Name == "time" && f.Sel.Name != "Sleep"
	}
	return true
}
