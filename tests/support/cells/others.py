# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
# ruff: noqa: E501 - a table reads best with a row on a line
"""Java, Go and bash."""

from __future__ import annotations

from support.cells import Cell

JAVA = [
    Cell("expression", "1 + 1", value="2"),
    Cell("print and value", 'System.out.println("Hello");\nint result = 2 + 2;\nresult', stdout="Hello\n", value="4"),
    Cell("state", "result * 10", value="40"),
    Cell("usual imports", "List<Integer> numbers = Arrays.asList(1, 2, 3);\nnumbers.stream().mapToInt(Integer::intValue).sum()", value="6"),
    Cell("own import", "import java.time.Duration;\nDuration.ofMinutes(90)", value="PT1H30M"),
    Cell("method", "int twice(int n) { return 2 * n; }\ntwice(21)", value="42"),
    Cell("class", 'class Dog { String say() { return "woof"; } }\nnew Dog().say()', value='"woof"'),
    Cell("redefined", 'class Dog { String say() { return "arf"; } }\nnew Dog().say()', value='"arf"'),
    Cell("loop", "for (int i = 0; i < 3; i++) {\n    System.out.println(i);\n}", stdout="0\n1\n2\n"),
    Cell("streams in order", 'System.out.println("a"); System.err.println("b"); System.out.println("c");', stdout="a\nc\n", stderr="b\n"),
    Cell("lambda", "Function<Integer, Integer> inc = n -> n + 1;\ninc.apply(4)", value="5"),
    Cell("generic method", "<T> T same(T t) { return t; }\nsame(\"x\")", value='"x"'),
    Cell("exception", "int x = 10 / 0;", error="EvalException", has_trace=("java.lang.ArithmeticException: / by zero",)),
    Cell("exception in a method", 'int deep() { throw new IllegalStateException("bad"); }\ndeep()', error="EvalException", has_trace=("IllegalStateException: bad", "at .deep")),
    Cell("compile error", 'int y = "a";', error="CompilationException", has_trace=("incompatible types", "^")),
    Cell("unknown name", "nothing()", error="CompilationException", has_trace=("cannot find symbol",)),
    Cell("statement's value is not shown", "var list = new ArrayList<Integer>();\nlist.add(1);", value=""),
    Cell("state after errors", "result + list.size()", value="5"),
    Cell("output is closed with its writer", 'try (PrintWriter w = new PrintWriter(System.out)) { w.println("kept"); }', stdout="kept\n"),
    Cell("output is still there", 'try (Scanner s = new Scanner(System.in)) { System.out.println(s.hasNext()); }', stdout="false\n"),
    Cell("text that fails", 'class Mute { public String toString() { throw new RuntimeException("no"); } }\nnew Mute()', value=None, has_out=("its toString failed",)),
]  # fmt: skip

GO = [
    Cell("program", 'package main\nimport "fmt"\nfunc main() {\n    fmt.Println("Hello")\n}', stdout="Hello\n"),
    Cell("expression", "1 + 1", value="2"),
    Cell("statements", "x := 5\ny := map[string]int{\"a\": 1}\nfmt.Println(x, y)", stdout="5 map[a:1]\n"),
    Cell("state", 'x++\ny["b"] = x\ny', value="map[a:1 b:6]"),
    Cell("functions", "func twice(n int) int { return 2 * n }"),
    Cell("carried function", "twice(x)", value="12"),
    Cell("types and methods", "type P struct{ X, Y int }\nfunc (p P) Sum() int { return p.X + p.Y }\np := P{1, 2}\np.Sum()", value="3"),
    Cell("carried struct", "p.X = 40\np.Sum()", value="42"),
    Cell("redefined function", "func twice(n int) int { return 3 * n }\ntwice(2)", value="6"),
    Cell("function value", "f := func(a int) int { return a + 1 }\nf(1)", value="2"),
    Cell("carried function value", "f(x)", value="7"),
    Cell("named import", 'import str "strings"\nstr.ToUpper("go")', value="GO"),
    Cell("control flow", 'for i := 0; i < 2; i++ {\n    fmt.Println(i)\n}\nif x > 1 {\n    fmt.Println("big")\n} else {\n    fmt.Println("small")\n}', stdout="0\n1\nbig\n"),
    Cell("constants", "const K = 3\nvar V = K * 2"),
    Cell("variable of a declaration", "V + K", value="9"),
    Cell("stderr", 'fmt.Fprintln(os.Stderr, "complaint")', stderr="complaint\n"),
    Cell("compile error", "package main\nfunc main() {\n    undeclared++\n}", error="CompileError", has_trace=("cell-", ":3:", "undefined: undeclared")),
    Cell("panic", "var empty []int\nempty[3] = 1", stderr=None, error="panic", has_trace=("index out of range [3]",)),
    Cell("exit", "os.Exit(3)", error="CommandExecError"),
    Cell("variables declared together", "var one, two = 1, 2\none + two", value="3"),
    Cell("are carried together", "one, err := strconv.Atoi(\"5\")\nerr == nil && one + two == 7", value="true"),
    Cell("some of them cannot", "var three, pipe = 3, make(chan int)\nthree, _ = 4, pipe"),
    Cell("and the others are kept", "three", value="4"),
    Cell("hidden fields", "type Account struct { Owner string; balance int }\naccount := Account{\"Ann\", 5}\naccount", value="{Owner:Ann balance:5}"),
    Cell("are not lost silently", "account", error="CompileError", has_trace=("main.Account", "cannot be carried")),
    Cell("what cannot be carried", "ch := make(chan int, 1)\nch <- 1"),
    Cell("is named", "<-ch", error="CompileError", has_trace=("chan int", "cannot be carried")),
    Cell("state after errors", "x", value="6"),
]  # fmt: skip

BASH = [
    Cell("echo", "echo hello", stdout="hello\n"),
    Cell("variables and functions", "x=5; f() { echo \"f$1\"; }; cd /usr"),
    Cell("state", "echo $x; f 3; pwd", stdout="5\nf3\n/usr\n"),
    Cell("stderr", "echo oops >&2", stderr="oops\n"),
    Cell("arrays", "declare -A m=([a]=1); echo ${m[a]}", stdout="1\n"),
    Cell("arrays stay", "echo ${!m[@]}", stdout="a\n"),
    Cell("aliases", "alias ll='echo aliased'"),
    Cell("aliases stay", "ll", stdout="aliased\n"),
    Cell("here document", "cat <<EOF\nx is $x\nEOF", stdout="x is 5\n"),
    Cell("pipe", "printf 'b\\na\\n' | sort", stdout="a\nb\n"),
    Cell("input is empty", "read v; echo \"[$v]\"", stdout="[]\n"),
    Cell("failure", "ls /nowhere-at-all", stderr=None, error="CommandExecError", has_trace=("exit status 2",)),
    Cell("exit status", "(exit 7)", error="CommandExecError", has_trace=("exit status 7",)),
    Cell("syntax error", "if then", stderr=None, error="CommandExecError"),
    Cell("exclamation mark", 'echo "wow!"', stdout="wow!\n"),
    Cell("no history", "history | wc -l", stdout="0\n"),
    Cell("export reaches children", "export Y=1; sh -c 'echo $Y'", stdout="1\n"),
    Cell("nothing of ours is open", "ls /proc/self/fd | wc -l", stdout="4\n"),
    Cell("state after errors", "echo $x", stdout="5\n"),
]  # fmt: skip
