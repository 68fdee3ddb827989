// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Runs cells of JavaScript and TypeScript as the daemon tells it to, for Node 18 and newer. Orders come as frames
// through descriptor 3, answers leave through descriptor 4 (frames are described in the daemon's frames.go).
//
// Cells run in the global scope in V8's own REPL mode: const, let and class may be declared again, and await works
// everywhere. The text is the body of a function with the parameters require, language and load (a plain import()).
'use strict';

const fs = require('fs');
const inspector = require('inspector');
const { createRequire, isBuiltin } = require('module');
const path = require('path');
const url = require('url');
const util = require('util');
const vm = require('vm');

const ORDERS = 3;
const ANSWERS = 4;
const PARSER = 6;
const LARGEST = 48 << 20;
const INSPECT = { depth: 4, maxArrayLength: 200, maxStringLength: 100000, breakLength: 100 };

// --- frames

function writeFrame(...fields) {
  const parts = [number(fields.length)];
  for (const field of fields) {
    const raw = Buffer.isBuffer(field) ? field : Buffer.from(String(field));
    parts.push(number(raw.length), raw);
  }
  let left = Buffer.concat(parts);
  while (left.length) left = left.subarray(fs.writeSync(ANSWERS, left));
}

function number(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

function readExactly(size) {
  const bytes = Buffer.alloc(size);
  for (let have = 0; have < size; ) {
    const n = fs.readSync(ORDERS, bytes, have, size - have, null);
    if (n === 0) process.exit(0);
    have += n;
  }
  return bytes;
}

// readFrame blocks, so it is called only when a frame is on its way. The first byte may be known already.
function readFrame(first = Buffer.alloc(0)) {
  const count = Buffer.concat([first, readExactly(4 - first.length)]).readUInt32BE();
  return Array.from({ length: count }, () => readExactly(readExactly(4).readUInt32BE()));
}

// --- output and results

const state = { running: false, last: null, figures: [], interrupt: null, cwd: null };

// ask sends a frame and waits until the daemon took it and all output before it.
function ask(...fields) {
  if (!state.running) return;
  writeFrame(...fields);
  readFrame();
}

// The daemon reads two pipes and cannot know which was written first: before the other stream is written it is asked
// to read what this one has.
for (const stream of [process.stdout, process.stderr]) {
  // A cell is done when all it wrote is in the pipe, not somewhere on its way there.
  stream._handle?.setBlocking?.(true);
  const write = stream.write;
  stream.write = function (...given) {
    if (state.last !== stream) {
      if (state.last !== null) ask('sync');
      state.last = stream;
    }
    return write.apply(stream, given);
  };
}

const JUPYTER = Symbol.for('Jupyter.display');
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47]);

function formsOf(value) {
  const forms = { 'text/plain': textOf(value) };
  if (value === null || typeof value !== 'object') return forms;
  try {
    if (typeof value[JUPYTER] === 'function') return { ...forms, ...value[JUPYTER]() };
    if (Buffer.isBuffer(value) && value.subarray(0, 4).equals(PNG)) return { ...forms, 'image/png': value };
  } catch (error) {
    complain(error); // a form that cannot be made is no reason to fail
  }
  return forms;
}

function textOf(value) {
  try {
    const text = util.inspect(value, INSPECT);
    return text.includes('casulo:') ? withoutOwnFrames(text).join('\n') : text;
  } catch (error) {
    return `<${typeof value} that cannot be inspected: ${error}>`;
  }
}

function show(kind, forms) {
  const fields = [];
  let total = 0;
  for (const [mime, data] of Object.entries(forms)) {
    let raw;
    try {
      raw = encoded(mime, data);
    } catch (error) {
      complain(error);
      continue;
    }
    if (total + raw.length > LARGEST) continue;
    total += raw.length;
    fields.push(mime, raw);
  }
  if (fields.length) ask(kind, ...fields);
}

function encoded(mime, data) {
  if (data instanceof Uint8Array) {
    const isText = mime.startsWith('text/') || mime === 'image/svg+xml';
    return isText ? Buffer.from(data) : Buffer.from(Buffer.from(data).toString('base64'));
  }
  return Buffer.from(typeof data === 'string' ? data : JSON.stringify(data));
}

// display shows values in the middle of a cell; with raw each one maps MIME types to data.
function display(value, { raw = false } = {}) {
  show('display', raw ? value : formsOf(value));
}

// --- the language

let parser = null;

function sucrase() {
  if (parser === null) {
    const size = fs.fstatSync(PARSER).size;
    const text = Buffer.alloc(size);
    // By position: the descriptor is shared with other contexts.
    for (let have = 0; have < size; ) have += fs.readSync(PARSER, text, have, size - have, have);
    const module = { exports: {} };
    new Function('require', 'module', 'exports', text.toString())(require, module, module.exports);
    parser = module.exports;
  }
  return parser;
}

// prepare turns a cell into what the REPL mode takes: types are stripped, imports become awaited calls.
function prepare(code) {
  if (language === 'typescript') {
    refuseNamespaces(code);
    const options = { transforms: ['typescript'], disableESTransforms: true, keepUnusedImports: true };
    code = sucrase().transform(code, options).code;
  }
  return /\b(import|export)\b/.test(code) ? withoutModuleSyntax(code) : code;
}

// Stripping types would take a namespace away with all that is in it.
function refuseNamespaces(code) {
  if (!/\b(namespace|module)\s+[\w$]/.test(code)) return;
  const { tokens } = sucrase().parse(code, false, true, false);
  const words = tokens.map((token) => code.slice(token.start, token.end));
  const at = words.findIndex(
    (word, i) => /^(namespace|module)$/.test(word) && /^[\w$]+$/.test(words[i + 1] ?? '') &&
      /^[.{]$/.test(words[i + 2] ?? '') && words[i - 1] !== 'declare',
  );
  if (at >= 0) throw new Error(`${words[at]} ${words[at + 1]}: namespaces are not supported; write an object or a class instead`);
}

function withoutModuleSyntax(code) {
  let tokens;
  try {
    tokens = sucrase().parse(code, false, false, false).tokens;
  } catch {
    return code; // V8 says better what is wrong
  }
  const text = (i) => (tokens[i] ? code.slice(tokens[i].start, tokens[i].end) : '');
  let result = '';
  let copied = 0;
  const replace = (from, to, by) => {
    const lines = code.slice(from, to).split('\n').length - 1;
    result += code.slice(copied, from) + by + '\n'.repeat(lines);
    copied = to;
  };
  for (let i = 0; i < tokens.length; i++) {
    if (tokens[i].start < copied || text(i - 1) === '.' || text(i - 1) === '?.') continue;
    if (text(i) === 'import' && text(i + 1) === '(') replace(tokens[i].start, tokens[i].end, '__import');
    else if (text(i) === 'import' && text(i + 1) === '.') replace(tokens[i].start, tokens[i + 2].end, '__importMeta');
    else if (text(i) === 'import' && startsStatement(text, i) && text(i + 1) !== ':') {
      const end = endOfModuleStatement(text, tokens, i);
      replace(tokens[i].start, tokens[end].end, importCall(tokens.slice(i + 1, end + 1).map((t) => code.slice(t.start, t.end))));
    } else if (text(i) === 'export' && startsStatement(text, i) && text(i + 1) !== ':') {
      if (text(i + 1) === '{' || text(i + 1) === '*') {
        replace(tokens[i].start, tokens[endOfModuleStatement(text, tokens, i)].end, '');
      } else {
        replace(tokens[i].start, tokens[text(i + 1) === 'default' ? i + 1 : i].end, '');
      }
    }
  }
  return result + code.slice(copied);
}

function startsStatement(text, i) {
  return i === 0 || text(i - 1) !== ',';
}

// endOfModuleStatement is the index of the module's name, or of the closing brace of a list without one.
function endOfModuleStatement(text, tokens, i) {
  for (let j = i + 1; j < tokens.length; j++) {
    if (/^['"]/.test(text(j))) return hasAttributes(text, tokens, j) ? closingBrace(text, tokens, j) : j;
    if (text(j) === '}' && text(j + 1) !== 'from') return j;
  }
  return tokens.length - 1;
}

function hasAttributes(text, tokens, name) {
  return /^(with|assert)$/.test(text(name + 1)) && text(name + 2) === '{';
}

function closingBrace(text, tokens, from) {
  let j = from;
  while (j < tokens.length - 1 && text(j) !== '}') j++;
  return j;
}

// importCall writes `import a, {b as c} from 'x'` as a declaration with an awaited call.
function importCall(words) {
  const at = words.findIndex((word) => /^['"]/.test(word));
  const from = words[at];
  const given = words.slice(at + 2).join(' ');
  const options = given ? `{with: ${given}, assert: ${given}}` : 'undefined'; // the latter is how older versions call it
  if (at === 0) return `await __import(${from}, ${options})`;
  const names = [];
  let whole = null;
  for (let i = 0; i < at - 1; i++) {
    if (words[i] === '*') whole = words[(i += 2)];
    else if (words[i] === '{') {
      for (i++; words[i] !== '}'; i++) {
        if (words[i] === ',') continue;
        if (words[i + 1] === 'as') names.push(`${words[i]}: ${words[(i += 2)]}`);
        else names.push(words[i]);
      }
    } else if (words[i] !== ',') names.push(`default: ${words[i]}`);
  }
  const wanted = JSON.stringify(names.map((each) => each.split(':')[0]));
  const parts = [];
  if (whole !== null) parts.push(`${whole} = await __import(${from}, ${options})`);
  if (names.length || whole === null) parts.push(`{${names.join(', ')}} = ${whole ?? `await __import(${from}, ${options}, ${wanted})`}`);
  return `const ${parts.join(', ')}`;
}

// importForCell is what an import becomes. Names that Node cannot see in an older module (CommonJS) are taken from the
// object that it exports; names that are not there either are an error, as in a file.
async function importForCell(name, options, wanted = []) {
  const found = await importModule(name, options);
  const missing = wanted.filter((each) => !(each in found));
  if (!missing.length) return found;
  const inner = Object(found.default);
  const lost = missing.find((each) => !(each in inner));
  if (lost !== undefined) throw new SyntaxError(`The requested module '${name}' does not provide an export named '${lost}'`);
  return { ...found, ...Object.fromEntries(missing.map((each) => [each, inner[each]])) };
}

// importModule resolves names as a file in the working directory would.
async function importModule(name, options) {
  const loader = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  if (loader) {
    const filename = path.join(process.cwd(), 'cell.js');
    const text = options ? '(name, options) => import(name, options)' : '(name) => import(name)';
    const script = new vm.Script(text, { filename, importModuleDynamically: loader });
    return script.runInThisContext()(String(name), options);
  }
  if (isBuiltin(name) || /^[a-z]{2,}:/.test(name)) return load(name, options);
  return load(url.pathToFileURL(resolveOld(String(name))).href, options);
}

// resolveOld is for versions that cannot resolve imports for others: as require does, else by the package's own word.
function resolveOld(name) {
  if (/^\.{0,2}\//.test(name)) return path.resolve(name);
  const local = createRequire(path.join(process.cwd(), 'cell.js'));
  try {
    return local.resolve(name);
  } catch (error) {
    if (error.code !== 'ERR_PACKAGE_PATH_NOT_EXPORTED') throw error;
    const folder = local.resolve.paths(name).map((p) => path.join(p, name)).find((p) => fs.existsSync(p));
    const exported = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8')).exports;
    let entry = exported['.'] ?? exported;
    while (typeof entry === 'object') entry = entry.import ?? entry.node ?? entry.default;
    return path.join(folder, entry);
  }
}

// --- cells

const session = new inspector.Session();
session.connect();

function post(method, parameters) {
  let answer;
  session.post(method, parameters, (error, result) => {
    if (error) throw new Error(error.message);
    answer = result;
  });
  return answer;
}

// held brings a value from the inspector's side to ours.
const holder = {};
define('__holder', holder);
const holderId = post('Runtime.evaluate', { expression: '__holder' }).result.objectId;
delete globalThis.__holder;

function held({ type, value, unserializableValue, objectId }) {
  if (type === 'undefined') return undefined;
  const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
  const functionDeclaration = 'function (value) { this.value = value; }';
  post('Runtime.callFunctionOn', { objectId: holderId, functionDeclaration, arguments: [argument] });
  const found = holder.value;
  holder.value = undefined;
  return found;
}

const bridge = new vm.Script('__run()', { filename: 'casulo' });

// evaluate runs prepared code; the promise gets the inspector's answer. A signal stops even a tight loop.
function evaluate(expression) {
  return new Promise((resolve, reject) => {
    state.interrupt = () => reject(new Interrupted());
    const parameters = { expression, replMode: true, awaitPromise: true, objectGroup: 'cell', silent: true };
    define('__run', () => session.post('Runtime.evaluate', parameters, (error, answer) => {
      if (error) reject(/terminated/.test(error.message) ? new Interrupted() : new Error(error.message));
      else resolve(answer);
    }));
    try {
      bridge.runInThisContext({ breakOnSigint: true });
    } catch (error) {
      reject(error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED' ? new Interrupted() : error);
    }
  }).finally(() => {
    state.interrupt = null;
    delete globalThis.__run;
  });
}

class Interrupted extends Error {
  constructor() {
    super('the cell was interrupted');
    this.name = 'KeyboardInterrupt';
    this.stack = `${this.name}: ${this.message}`;
  }
}

async function run(code, number) {
  const name = `cell-${number}`;
  refreshRequire();
  let prepared;
  try {
    prepared = prepare(code);
  } catch (error) {
    const message = error.message.replace(/^Error transforming: /, '');
    return tell('SyntaxError', message, [`SyntaxError: ${message}`]);
  }
  let answer;
  try {
    answer = await evaluate(`${prepared}\n//# sourceURL=${name}`);
  } catch (error) {
    return tellError(error);
  } finally {
    restoreGlobals();
  }
  if (answer.exceptionDetails) return tellException(answer.exceptionDetails, code);
  const value = held(answer.result);
  post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
  if (value !== undefined) {
    define('_', value);
    show('result', formsOf(value));
  }
}

function tellException({ exception, lineNumber, columnNumber, text }, code) {
  const thrown = exception ? held(exception) : new Error(text);
  const where = [];
  if (thrown instanceof SyntaxError && !/\n\s+at cell-\d/.test(thrown.stack)) {
    const line = code.split('\n')[lineNumber];
    if (line !== undefined) where.push(`line ${lineNumber + 1}`, line, ' '.repeat(columnNumber) + '^');
  }
  tellError(thrown, where);
}

function tellError(thrown, where = []) {
  if (!util.types.isNativeError(thrown)) {
    const text = textOf(thrown);
    return tell('Uncaught', text, [`Uncaught ${text}`]);
  }
  const trace = withoutOwnFrames(String(thrown.stack ?? thrown));
  if (thrown.cause !== undefined) trace.push(...withoutOwnFrames(`  [cause]: ${textOf(thrown.cause)}`));
  tell(thrown.name || thrown.constructor.name, thrown.message, [...where, ...trace]);
}

// What stands below a cell in a trace: the inspector, the driver, and Node's own machinery.
const OWN_FRAME = /^\s+at .*(node:inspector|node:internal|node:vm|\bcasulo:|eval at <anonymous> \(\[eval\]|\[eval\]:)/;

function withoutOwnFrames(text) {
  const lines = text.split('\n');
  return lines.filter((line, i) => !OWN_FRAME.test(line) && !(line.trim() === 'at new Promise (<anonymous>)' && OWN_FRAME.test(lines[i - 1] ?? '')));
}

function tell(name, message, trace) {
  writeFrame('error', name, message, ...trace.slice(0, 200));
}

// --- what cells find

function define(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

// What a cell deleted from the global scope is back for the next one: without Promise nothing works, this driver included.
const { defineProperty, getOwnPropertyDescriptors, keys } = Object;
const hasOwn = Object.prototype.hasOwnProperty;
let usual = {};

function restoreGlobals() {
  for (const name of keys(usual)) {
    if (!hasOwn.call(globalThis, name)) defineProperty(globalThis, name, usual[name]);
  }
}

function refreshRequire() {
  const cwd = process.cwd();
  if (state.cwd === cwd) return;
  state.cwd = cwd;
  const filename = path.join(cwd, 'cell.js');
  define('require', createRequire(filename));
  define('__filename', filename);
  define('__dirname', cwd);
  define('__importMeta', { url: url.pathToFileURL(filename).href, filename, dirname: cwd });
}

// Some versions call what importModule uses experimental; that is our business, not the cell's.
const emitWarning = process.emitWarning;
process.emitWarning = function (warning, ...rest) {
  if (!String(warning).startsWith('vm.USE_MAIN_CONTEXT_DEFAULT_LOADER')) emitWarning.call(process, warning, ...rest);
};

function complain(error) {
  process.stderr.write(`Uncaught ${withoutOwnFrames(textOf(error)).join('\n')}\n`);
}

// serve waits for the next order without holding up timers and servers that cells left behind.
function serve(number) {
  const first = Buffer.alloc(1);
  fs.read(ORDERS, first, 0, 1, null, (error, n) => {
    if (error || n === 0) process.exit(0);
    const [kind, code] = readFrame(first);
    if (kind.toString() !== 'run') return serve(number);
    state.running = true;
    state.last = null;
    // A cell that awaits what never comes would leave nothing to do, and Node would end.
    const alive = setInterval(() => {}, 1 << 30);
    run(code.toString(), number)
      .catch(tellError)
      .then(() => new Promise(nextTurn)) // so that rejections nobody handles are still told by this cell
      .finally(() => {
        clearInterval(alive);
        state.running = false;
        writeFrame('done');
        serve(number + 1);
      });
  });
}

const nextTurn = setImmediate;
define('display', display);
define('__import', importForCell);
define('module', { exports: {} });
define('exports', globalThis.module.exports);
process.argv.splice(1);
process.on('SIGINT', () => state.interrupt?.());
process.on('uncaughtException', complain);
process.on('unhandledRejection', complain);
usual = getOwnPropertyDescriptors(globalThis);
writeFrame('ready', process.version);
serve(1);
