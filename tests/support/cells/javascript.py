# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
# ruff: noqa: E501 - a table reads best with a row on a line
"""JavaScript, and TypeScript on top of it."""

from __future__ import annotations

from support.cells import Cell

CELLS = [
    Cell("expression", "1 + 1", value="2"),
    Cell("declarations", "const a = 1; let b = 2; class C { m() { return 1; } }\nfunction f() { return a + b; }"),
    Cell("state", "f() + new C().m()", value="4"),
    Cell("declared again", "const a = 10; let b = 20; class C { m() { return 2; } }\nf() + new C().m()", value="32"),
    Cell("console", "console.log('out', { a: 1 }); console.error('err')", stdout="out { a: 1 }\n", stderr="err\n"),
    Cell("await", "const v = await new Promise(r => setTimeout(() => r(7), 5));\nv + 1", value="8"),
    Cell("string", "'text'", value="'text'"),
    Cell("object", "({ a: [1, 2, { b: 3 }], s: 'x' })", value="{ a: [ 1, 2, { b: 3 } ], s: 'x' }"),
    Cell("map and set", "[new Map([[1, 'a']]), new Set([2])]", value="[ Map(1) { 1 => 'a' }, Set(1) { 2 } ]"),
    Cell("undefined is nothing", "undefined", value=""),
    Cell("imports", "import fs, { readFileSync as read } from 'fs';\nimport * as path from 'node:path';\n[typeof read, fs.readFileSync === read, path.basename('/x/y')]", value="[ 'function', true, 'y' ]"),
    Cell("import of a name that is not there", "import { nothing } from 'path';", error="SyntaxError", has_trace=("does not provide an export named 'nothing'",)),
    Cell("names of an older module", "fs.writeFileSync('older.cjs', 'module.exports = { w: 2 }'); fs.writeFileSync('data.json', '{\"a\": [1]}');\nimport { w } from './older.cjs';\nw", value="2"),
    Cell("import of JSON", "import data from './data.json' with { type: 'json' };\nimport * as same from 'path';\ndata", value="{ a: [ 1 ] }", stderr=None),
    Cell("error as a value", "Object.assign(new Error('kept'), { stack: 'Error: kept\\n    at f (a.js:1:1)\\n    at casulo:1:1' })", value="Error: kept\n    at f (a.js:1:1)"),
    Cell("imports stay", "path.extname('a.txt')", value="'.txt'"),
    Cell("dynamic import", "(await import('os')).EOL", value="'\\n'"),
    Cell("import in a function", "async function load() { return (await import('path')).sep; }\nawait load()", value="'/'"),
    Cell("require", "require('path').join('a', 'b')", value="'a/b'"),
    Cell("export is ignored", "export const exported = 3;\nexported", value="3"),
    Cell("destructuring", "const { p, ...rest } = { p: 1, q: 2, r: 3 };\nrest", value="{ q: 2, r: 3 }"),
    Cell("timers", "setTimeout(() => console.log('later'), 5);\nawait new Promise(r => setTimeout(r, 40))", stdout="later\n"),
    Cell("long output", "process.stdout.write('y'.repeat(2000000) + '\\n'); 0", stdout="y" * 2000000 + "\n", value="0"),
    Cell("error", "function bad() { null.x; }\nbad()", error="TypeError", has_trace=("at bad (cell-",)),
    Cell("reference error", "notDefined", error="ReferenceError", has_trace=("notDefined is not defined",)),
    Cell("syntax error", "let y = ;", error="SyntaxError", has_trace=("let y = ;", "^")),
    Cell("thrown object", "throw { code: 1 }", error="Uncaught", has_trace=("{ code: 1 }",)),
    Cell("async error", "async function later() { await null; throw new RangeError('r'); }\nawait later()", error="RangeError", has_trace=("at later",)),
    Cell("cause", "throw new Error('outer', { cause: new Error('inner') })", error="Error", has_trace=("[cause]: Error: inner",)),
    Cell("rejection nobody handles", "Promise.reject(new Error('lost'));\nawait new Promise(r => setTimeout(r, 10))", stderr=None, has_out=("Uncaught Error: lost",)),
    Cell("display", "display({ 'text/html': '<b>x</b>' }, { raw: true }); display([1])", displays=2),
    Cell("child process", "require('child_process').execSync('echo child').toString()", value="'child\\n'"),
    Cell("rejection after the value", "Promise.reject(new Error('late'));\n1", value="1", stderr=None, has_out=("Uncaught Error: late",)),
    Cell("value that refuses", "new Proxy({}, { get() { throw new Error('no'); } })", value="{}", stderr=None, has_out=("Uncaught Error: no",)),
    Cell("globals are deleted", "delete globalThis.Promise; delete globalThis.console; delete globalThis.Buffer", value="true"),
    Cell("globals are back", "console.log(await Promise.resolve(Buffer.from('x').length))", stdout="1\n"),
    Cell("stdin is empty", "require('fs').readFileSync(0, 'utf8')", value="''"),
    Cell("state after errors", "[a, b]", value="[ 10, 20 ]"),
]  # fmt: skip

TYPESCRIPT = [
    Cell("types are stripped", "interface P { n: string }\nconst p: P = { n: 'x' };\np.n", value="'x'"),
    Cell("state", "console.log(p.n)", stdout="x\n"),
    Cell("enum", "enum E { A = 1, B }\nE.B", value="2"),
    Cell("class", "class K { constructor(private q: number) {} get d(): number { return this.q * 2; } }\nnew K(4).d", value="8"),
    Cell("generics", "function id<T>(x: T): T { return x; }\nid<number[]>([1])", value="[ 1 ]"),
    Cell("imports", "import { join } from 'path';\nimport type { Stats } from 'fs';"),
    Cell("imports are kept", "join('a', 'b') as string", value="'a/b'"),
    Cell("await", "const n: number = await Promise.resolve(5);\nn!", value="5"),
    Cell("satisfies and as", "const s = ({ a: 1 } satisfies Record<string, number>) as { a: number };\ns.a", value="1"),
    Cell("type only", "type X = { a: number };\ndeclare const y: X;"),
    Cell("abstract", "abstract class Q { abstract go(): string; }\nclass R extends Q { go() { return 'r'; } }\nnew R().go()", value="'r'"),
    Cell("optional", "const o: { a?: { b?: number } } = {};\no.a?.b ?? 'none'", value="'none'"),
    Cell("overloads", "function g(a: string): string;\nfunction g(a: number): number;\nfunction g(a: any): any { return a; }\ng(3)", value="3"),
    Cell("thrown", "throw new Error('ts')", error="Error", has_trace=("Error: ts",)),
    Cell("syntax error", "let z: number = ;", error="SyntaxError"),
    Cell("namespace", "namespace N { export const x = 1 }", error="SyntaxError", has_trace=("namespace N: namespaces are not supported",)),
    Cell("declared namespace", "declare namespace M { const x: number }\nconst module = 1; module", value="1"),
    Cell("generator", "function* gen(): Generator<number> { yield 1; yield 2; }\n[...gen()]", value="[ 1, 2 ]"),
]  # fmt: skip
