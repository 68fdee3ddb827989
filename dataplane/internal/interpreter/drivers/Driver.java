// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;

/**
 * Runs cells of Java as the daemon tells it to, through JShell, for Java 11 and newer. Orders come as frames through
 * descriptor 3, answers leave through descriptor 4 (frames are described in the daemon's frames.go). User code runs in
 * a virtual machine of its own, which JShell starts; this one compiles and talks.
 */
public final class Driver {
    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.regex.*", "java.util.stream.*", "java.time.*",
    };

    /** User code that closes its output, often by closing a writer around it, shall not lose it. */
    private static final String KEPT_OPEN =
        "System.setOut(new PrintStream(new FilterOutputStream(System.out) {"
            + " public void write(byte[] b, int o, int n) throws IOException { out.write(b, o, n); }"
            + " public void close() throws IOException { flush(); } }, true) { public void close() { flush(); } });";
    private static final String UNSHOWN = "<value without a text: its toString failed, or System.out is gone>";

    private final DataInputStream orders = new DataInputStream(new FileInputStream("/proc/self/fd/3"));
    private final DataOutputStream answers = new DataOutputStream(new FileOutputStream("/proc/self/fd/4"));
    private final BlockingQueue<String> cells = new LinkedBlockingQueue<>();
    private final BlockingQueue<Boolean> acks = new LinkedBlockingQueue<>();
    private final JShell shell;
    private volatile boolean running;
    private volatile boolean stopped;
    private OutputStream last;

    public static void main(String[] arguments) throws Exception {
        new Driver().serve();
    }

    private Driver() throws IOException {
        shell = JShell.builder()
            .out(new PrintStream(new Output(FileDescriptor.out), true, "UTF-8"))
            .err(new PrintStream(new Output(FileDescriptor.err), true, "UTF-8"))
            .remoteVMOptions("-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")
            .build();
        shell.onShutdown(ended -> System.exit(1));
        String path = System.getenv("CLASSPATH");
        if (path != null && !path.isEmpty()) {
            shell.addToClasspath(path);
        }
        for (String name : IMPORTS) {
            shell.eval("import " + name + ";");
        }
        shell.eval(KEPT_OPEN);
    }

    private void serve() throws Exception {
        Thread reader = new Thread(this::read, "orders");
        reader.setDaemon(true);
        reader.start();
        send("ready", System.getProperty("java.version"));
        while (true) {
            String code = cells.take();
            stopped = false;
            last = null;
            running = true;
            run(code);
            running = false;
            send("done");
        }
    }

    /** Takes orders as they come: an interrupt must get through while a cell runs. */
    private void read() {
        try {
            while (true) {
                List<String> order = receive();
                switch (order.get(0)) {
                    case "run":
                        cells.add(order.get(1));
                        break;
                    case "ack":
                        acks.add(true);
                        break;
                    case "interrupt":
                        interrupt();
                        break;
                    default:
                        break;
                }
            }
        } catch (IOException gone) {
            System.exit(0);
        }
    }

    private void interrupt() {
        if (running) {
            stopped = true;
            shell.stop();
        }
    }

    // --- cells

    private void run(String code) throws Exception {
        SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
        String rest = code;
        SnippetEvent value = null;
        while (!rest.trim().isEmpty()) {
            SourceCodeAnalysis.CompletionInfo info = analysis.analyzeCompletion(rest);
            boolean whole = info.completeness().isComplete() || info.source() != null && !info.remaining().equals(rest);
            String source = whole && info.source() != null ? info.source() : rest;
            rest = whole ? info.remaining() : "";
            value = null;
            for (SnippetEvent event : shell.eval(source)) {
                if (stopped) {
                    send("error", "KeyboardInterrupt", "the cell was interrupted", "KeyboardInterrupt");
                    return;
                }
                if (failed(event)) {
                    return;
                }
                if (event.causeSnippet() == null) {
                    value = event;
                }
            }
        }
        show(value, code.trim().endsWith(";"));
    }

    /** Tells what went wrong with a snippet, if something did. */
    private boolean failed(SnippetEvent event) throws Exception {
        if (event.exception() != null) {
            tell(event.exception());
            return true;
        }
        if (event.status() != Snippet.Status.REJECTED || event.causeSnippet() != null) {
            return false;
        }
        List<String> lines = new ArrayList<>();
        shell.diagnostics(event.snippet()).filter(Diag::isError).forEach(d -> lines.addAll(explain(event.snippet(), d)));
        if (lines.isEmpty()) {
            lines.add("this cannot be compiled: " + event.snippet().source());
        }
        List<String> fields = new ArrayList<>(List.of("error", "CompilationException", lines.get(0)));
        fields.addAll(lines);
        send(fields.toArray(new String[0]));
        return true;
    }

    private static List<String> explain(Snippet snippet, Diag diagnostic) {
        List<String> lines = new ArrayList<>(List.of(diagnostic.getMessage(Locale.ENGLISH).split("\n")));
        String source = snippet.source();
        int position = (int) Math.max(0, Math.min(diagnostic.getStartPosition(), source.length()));
        int start = source.lastIndexOf('\n', position - 1) + 1;
        int end = source.indexOf('\n', position);
        lines.add("  " + source.substring(start, end < 0 ? source.length() : end));
        lines.add("  " + " ".repeat(position - start) + "^");
        return lines;
    }

    private void tell(JShellException thrown) throws Exception {
        String name = thrown.getClass().getSimpleName();
        String text = thrown.getMessage();
        if (thrown instanceof EvalException) {
            text = ((EvalException) thrown).getExceptionClassName() + (text == null ? "" : ": " + text);
        } else if (thrown instanceof UnresolvedReferenceException) {
            Snippet missing = ((UnresolvedReferenceException) thrown).getSnippet();
            text = "this was called before all that it needs was there: " + missing.source();
        }
        List<String> fields = new ArrayList<>(List.of("error", name, String.valueOf(text), String.valueOf(text)));
        addTrace(fields, thrown);
        send(fields.toArray(new String[0]));
    }

    private static void addTrace(List<String> lines, Throwable thrown) {
        for (StackTraceElement element : thrown.getStackTrace()) {
            lines.add("    at " + element);
            if (lines.size() > 200) {
                return;
            }
        }
        Throwable cause = thrown.getCause();
        if (cause instanceof EvalException) {
            lines.add("Caused by: " + ((EvalException) cause).getExceptionClassName() + ": " + cause.getMessage());
            addTrace(lines, cause);
        }
    }

    /** Shows the value of an expression. That of a call whose line is closed like a statement is not meant. */
    private void show(SnippetEvent event, boolean closed) throws IOException {
        if (event == null) {
            return;
        }
        Snippet.SubKind kind = event.snippet().subKind();
        boolean variable = kind == Snippet.SubKind.VAR_VALUE_SUBKIND;
        boolean expression = kind == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND
            || kind == Snippet.SubKind.OTHER_EXPRESSION_SUBKIND;
        String value = event.value();
        boolean lost = value == null || value.isEmpty();
        if (variable || expression && !closed) {
            ask("result", "text/plain", lost ? UNSHOWN : value);
        }
    }

    // --- frames

    private List<String> receive() throws IOException {
        int count = orders.readInt();
        List<String> fields = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            byte[] bytes = new byte[orders.readInt()];
            orders.readFully(bytes);
            fields.add(new String(bytes, StandardCharsets.UTF_8));
        }
        if (fields.isEmpty()) {
            throw new EOFException();
        }
        return fields;
    }

    private synchronized void send(String... fields) throws IOException {
        java.io.ByteArrayOutputStream buffer = new java.io.ByteArrayOutputStream();
        DataOutputStream frame = new DataOutputStream(buffer);
        frame.writeInt(fields.length);
        for (String field : fields) {
            byte[] bytes = field.getBytes(StandardCharsets.UTF_8);
            frame.writeInt(bytes.length);
            frame.write(bytes);
        }
        answers.write(buffer.toByteArray());
        answers.flush();
    }

    /** Sends a frame and waits until the daemon took it and all output before it. */
    private void ask(String... fields) throws IOException {
        if (!running) {
            return;
        }
        send(fields);
        try {
            acks.take();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Output of the user's code. The daemon reads two pipes and cannot know which was written first, so before the
     * other stream is written it is asked to read what this one has.
     */
    private final class Output extends OutputStream {
        private final FileOutputStream file;

        Output(FileDescriptor descriptor) {
            file = new FileOutputStream(descriptor);
        }

        @Override
        public void write(int single) throws IOException {
            write(new byte[] {(byte) single}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            if (last != this) {
                OutputStream before = last;
                last = this;
                if (before != null) {
                    ask("sync");
                }
            }
            file.write(bytes, offset, length);
        }
    }
}
