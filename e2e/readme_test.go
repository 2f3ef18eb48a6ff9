package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

const readmeFile = "../README.md"

// block is a fenced block of a document. A test runs the blocks in sh, and the text after
// one is its output; bash is for commands that a reader completes.
type block struct {
	lang, text string
	from, to   int // where text stands in the file
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n((?:.*?\n)??)```$")

func document(t *testing.T, file string) (string, []block) {
	t.Helper()
	data := must.Value(os.ReadFile(file))(t)
	var blocks []block
	for _, m := range fence.FindAllSubmatchIndex(data, -1) {
		blocks = append(blocks, block{string(data[m[2]:m[3]]), string(data[m[4]:m[5]]), m[4], m[5]})
	}
	return string(data), blocks
}

// snippet returns the first block of a language in a document that has a part.
func snippet(t *testing.T, file, lang, part string) string {
	t.Helper()
	_, blocks := document(t, file)
	i := slices.IndexFunc(blocks, func(b block) bool { return b.lang == lang && strings.Contains(b.text, part) })
	if i < 0 {
		t.Fatalf("%s has no block of %s with %q", file, lang, part)
	}
	return blocks[i].text
}

// terminal is a shell that a test types into.
type terminal struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

func openTerminal(t *testing.T, dir string) *terminal {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash")
	cmd.Dir = dir
	stdin := must.Value(cmd.StdinPipe())(t)
	stdout := must.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // its exit code is the last command's
	})
	return &terminal{t, cmd, stdin, bufio.NewReader(stdout)}
}

const prompt = "== the next command =="

// run types commands and returns their output.
func (s *terminal) run(commands string) string {
	s.t.Helper()
	must.Value(io.WriteString(s.stdin, commands+"\necho '"+prompt+"'\n"))(s.t)
	var out strings.Builder
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%v after:\n%s", err, out.String())
		}
		if before, ok := strings.CutSuffix(line, prompt+"\n"); ok {
			return out.String() + before
		}
		out.WriteString(line)
	}
}

// documents are those whose commands are run, and how many outputs they show at least;
// getting-started.md is run beside a browser.
var documents = map[string]int{
	readmeFile:                 4,
	"../docs/publishing.md":    8,
	"../docs/http.md":          4,
	"../docs/access.md":        3,
	"../docs/configuration.md": 1,
}

// The commands of the README and the documents print the output shown there.
func TestDocument_CommandsPrintTheOutputShown(t *testing.T) {
	t.Parallel()
	for file, shown := range documents {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			d := openDocument(t, file)
			if got := d.run(); got < shown {
				t.Errorf("it shows %d outputs", got)
			}
		})
	}
}

// openedDocument is a document whose commands are typed into a shell, in a folder with the
// files of a clone.
type openedDocument struct {
	t      *testing.T
	file   string
	text   string
	blocks []block
	p      *proc
	ran    bool // the first command that starts it was met
	shell  *terminal
	// instead runs instead of typing a command; it reports whether it did.
	instead func(command string) bool
	// here replaces the usual addresses by those of this test.
	here []string
}

func openDocument(t *testing.T, file string) *openedDocument {
	t.Helper()
	d := &openedDocument{t: t, file: file, instead: func(string) bool { return false }}
	d.text, d.blocks = document(t, file)
	d.p = startProc(t, "--partitions=16", "--ack-timeout=6s") // the documents show immediate answers
	root := must.Value(filepath.Abs(".."))(t)
	dir := filepath.Dir(d.p.data)
	for _, name := range []string{"examples", "services"} {
		must.NoError(t, os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)))
	}
	built(t, natsPackage)
	d.shell = openTerminal(t, dir)
	// Not the ports that the commands take for granted, nor this machine's Node.
	nats := "nats://" + d.p.addrs["--nats-addr"]
	d.shell.run("export REJOIN_NATS_URL=" + nats + " NATS_URL=" + nats + " REJOIN_URL=" + d.p.api() +
		" GOWORK=" + filepath.Join(root, "go.work") + " PATH=" + scratch + ":" + filepath.Dir(npm(t).node()) + ":$PATH")
	d.here = []string{
		"127.0.0.1:8080", d.p.addrs["--edge-addr"], "bin/rejoin", built(t, rejoinPackage),
		"go run rejoin/examples/direct", "go run rejoin/examples/direct -nats=" + nats,
		"timeout 2 ", "timeout 8 ", "wait=5", "wait=30", // on a slow machine; the first is still less than a heartbeat
	}
	return d
}

// run types the commands, and returns how many outputs were compared, or written with -update.
func (d *openedDocument) run() (compared int) {
	t := d.t
	t.Helper()
	here := strings.NewReplacer(d.here...)
	var edits []block
	for i, b := range d.blocks {
		if b.lang == "text" && i > 0 && d.blocks[i-1].lang == "text" && d.blocks[i-1].to+8 > b.from-len("```text\n") {
			t.Errorf("what prints this is missing:\n%s", b.text)
		}
		if b.lang != "sh" || d.instead(b.text) || d.starts(b.text) {
			continue
		}
		if strings.Contains(b.text, "curl -sN") && i+1 < len(d.blocks) {
			d.heard(d.blocks[i+1].text)
		}
		var got string
		waittest.Until(t, "a janitor acts, which changes a log's limits", func() bool {
			got = d.shell.run(here.Replace(b.text))
			return !strings.Contains(got, "no janitor answers")
		})
		if i+1 == len(d.blocks) || d.blocks[i+1].lang != "text" {
			if got != "" {
				t.Errorf("it shows no output of\n%sbut it prints\n%s", b.text, got)
			}
			continue
		}
		want := d.blocks[i+1]
		compared++
		if *update {
			want.text = got
			edits = append(edits, want)
		} else if normal(got) != normal(want.text) {
			t.Errorf("it shows\n%s\nbut\n%sprints\n%s", want.text, b.text, got)
		}
	}
	for _, e := range slices.Backward(edits) {
		d.text = d.text[:e.from] + e.text + d.text[e.to:]
	}
	if *update {
		write(t, d.file, d.text)
	}
	return compared
}

// heard waits until the edge has the messages that an event stream is to show. A 201
// follows the log's acknowledgement, and the first event of the stream depends on them.
func (d *openedDocument) heard(shown string) {
	d.t.Helper()
	waittest.Until(d.t, "the edge has heard of what is shown", func() bool {
		there := d.p.storedIn("demo", "main")
		return !slices.ContainsFunc(numbersIn(d.t, shown), func(n int) bool { return !slices.Contains(there, n) })
	})
}

// starts carries out the commands that start the program, which runs already, or was killed.
func (d *openedDocument) starts(command string) bool {
	command = strings.TrimSpace(command)
	args, ok := strings.CutPrefix(command, "make run")
	switch {
	case command == "make test":
		return true // that is this
	case !ok:
		return false
	case args == "":
	case args == " ARGS=--auth=jwt":
		d.p.stop()
		d.p.args = append(d.p.args, "--auth=jwt", "--jwt-secret-file="+filepath.Join(filepath.Dir(d.p.data), "jwt.secret"), "--jwt-audience=dev")
		d.p.start()
		return true
	default:
		d.t.Fatalf("it is unknown how to %s", command)
	}
	if d.ran {
		d.restarted()
	}
	d.ran = true
	return true
}

// restarted starts the program that a command has killed.
func (d *openedDocument) restarted() {
	d.t.Helper()
	waittest.Receive(d.t, "the killed program ends", d.p.done)
	d.p.start()
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// loggingJS keeps a page's log.
const loggingJS = "window.logged = []; console.log = console.warn = (...what) => logged.push(what); "

func TestDocument_EventSourceSnippetAfterReload(t *testing.T) {
	t.Parallel()
	// In braces it can be pasted twice, as into a page that was loaded again.
	pasted := loggingJS + "{" + snippet(t, "../docs/browser.md", "js", "") + "; window.source = source }; true"
	p := startProc(t, "--retry=100ms", "--heartbeat=100ms", "--ack-timeout=9s")
	b := openBrowser(t)
	paste := func() {
		b.do(chromedp.Navigate(p.api() + "/"))
		script[bool](b, pasted)
		b.until("source.readyState == EventSource.OPEN")
	}
	saved := "localStorage.getItem('cursor of /v1/sessions/demo/streams/page/events')"
	expect := func(want string) {
		t.Helper()
		b.until(fmt.Sprintf("logged.map((m) => m[1].params ? m[1].params.n : m[1].reason).join(' ') == %q", want))
	}

	paste()
	p.publish("demo", "page", 1, 3)
	expect("1 2 3")
	p.publish("demo", "page", 4, 5)
	expect("1 2 3 4 5")
	before := script[string](b, saved)
	p.publish("demo", "other", 1, 1)
	b.until(saved + " != " + fmt.Sprintf("%q", before)) // a cursor event was saved

	paste() // as after a reload
	p.publish("demo", "page", 6, 6)
	expect("6")

	p.kill()
	b.until("source.readyState != EventSource.OPEN")
	p.start()
	p.publish("demo", "page", 7, 7)
	expect("6 7")

	// Closed first: a cursor event would be saved over the wrong cursor.
	script[bool](b, "source.close(), localStorage.setItem('cursor of /v1/sessions/demo/streams/page/events', 'page_0000000_1'), true")
	paste()
	expect("unknown 1 2 3 4 5 6 7")
	p.close("/v1/sessions/demo/streams/page")
	b.until("source.readyState == EventSource.CLOSED")
}

func TestDocument_ClientSnippetsAfterReload(t *testing.T) {
	t.Parallel()
	for _, file := range []string{readmeFile, "../docs/browser.md"} {
		pasted := loggingJS + "(async () => {" + snippet(t, file, "js", "/rejoin.js") + "})(); true"
		p := startProc(t, "--ack-timeout=9s")
		b := openBrowser(t)
		for range 2 { // the second time as after a reload
			b.do(chromedp.Navigate(p.api() + "/"))
			script[bool](b, pasted)
			b.until("logged.length == 1 && logged[0][1].n == 1 && localStorage.getItem('my place') == logged[0][0]")
		}
		p.close("/v1/sessions/demo/streams/page")
		b.until("logged.length == 2 && logged[1][0] == 'the end' && logged[1][1].reason == 'closed'")
	}
}

// A component that is mounted, unmounted and mounted again, as React's strict mode does,
// shows each message once.
func TestDocument_ComponentSnippetDeliversOnce(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--ack-timeout=9s")
	b := openBrowser(t)
	b.onOrigin(p)
	p.publish("demo", "s", 1, 3)
	script[bool](b, `import('/rejoin.js').then(({ subscribe }) => {
		window.messages = []; window.unmounts = []
		const session = 'demo', stream = 's', reload = () => messages.push('reload')
		const setMessages = (next) => { messages = next(messages) }
		const useEffect = (effect) => { effect()(); unmounts.push(effect()) }
		`+snippet(t, "../docs/browser.md", "jsx", "")+`
	}) && true`)
	shown := "(window.messages ?? []).map((event) => event.message?.params.n ?? event).join(' ')"
	b.until(shown + " == '1 2 3'")
	p.publish("demo", "s", 4, 4)
	b.until(shown + " == '1 2 3 4'")
	script[bool](b, "unmounts[0](), true")
	p.publish("demo", "s", 5, 5)
	waittest.Until(t, "no client is connected", func() bool { return p.metric("rejoin_edge_connections") == 0 })
	if got := script[string](b, shown); got != "1 2 3 4" {
		t.Errorf("unmounted, it shows %s", got)
	}
}

// The page of the document shows the messages published before and after the program was killed.
func TestDocument_PageAfterRestart(t *testing.T) {
	t.Parallel()
	d := openDocument(t, "../docs/getting-started.md")
	s := pages(t)
	d.p.stop()
	d.p.args = append(d.p.args, "--cors-origins="+s.URL, "--retry=100ms")
	d.p.start()
	b := openBrowser(t)
	d.instead = func(command string) bool {
		switch {
		case strings.Contains(command, "make run"):
			if d.ran {
				b.says("waiting")
				d.restarted()
			}
			d.ran = true
		case strings.Contains(command, "http.server"):
			if !strings.Contains(d.text, "http://127.0.0.1:8000/client.html") {
				t.Error("the document does not say which page to open")
			}
			b.do(chromedp.Navigate(s.URL + "/client.html?base=" + d.p.api()))
			b.lists("1 2 3")
		default:
			return false
		}
		return true
	}
	d.run()
	b.lists("1 2 3 4 5")
}

// programs are those of the configuration table, in the order of its columns.
var programs = []struct {
	name, pkg string
	help      []string
}{
	{"rejoin", rejoinPackage, []string{"serve", "--help"}},
	{"ingest", "rejoin/services/ingest/cmd/ingest", []string{"--help"}},
	{"sse-edge", "rejoin/services/sse-edge/cmd/sse-edge", []string{"--help"}},
	{"janitor", "rejoin/services/janitor/cmd/janitor", []string{"--help"}},
	{"bridge", "rejoin/services/bridge/cmd/bridge", []string{"--help"}},
}

// option is a flag as --help shows it.
type option struct{ name, env, value, help string }

var (
	optionStart   = regexp.MustCompile(`^ {2,6}(?:-\w, )?--(\[no-\])?([a-z-]+)(?:=(\S+))?(.*)$`)
	optionEnv     = regexp.MustCompile(`\s*\(\$([A-Z_]+)\)`)
	optionDefault = regexp.MustCompile(`\s*\(default: ([^)]*)\)`)
)

// options reads a program's help: the output for args.
func options(t *testing.T, pkg string, args ...string) []option {
	t.Helper()
	program := built(t, pkg) // which may take its time
	cmd := exec.CommandContext(waittest.Context(t), program, args...)
	cmd.Env = withoutRejoin(os.Environ())
	out := must.Value(cmd.Output())(t)
	var all []option
	_, list, _ := strings.Cut(string(out), "\nFlags:\n")
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\n")
		if m := optionStart.FindStringSubmatch(line); m != nil {
			o := option{name: m[2], value: strings.Trim(m[3], `"`), help: strings.TrimSpace(m[4])}
			if m[3] == "" {
				o.value = "false" // a switch
			}
			all = append(all, o)
		} else if len(all) > 0 && strings.TrimSpace(line) != "" {
			all[len(all)-1].help += " " + strings.TrimSpace(line)
		}
	}
	for i := range all {
		o := &all[i]
		if m := optionEnv.FindStringSubmatch(o.help); m != nil {
			o.env = m[1]
			o.help = optionEnv.ReplaceAllString(o.help, "")
		}
		placeholder := o.value == strings.ToUpper(o.value) && strings.ContainsAny(o.value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
		if m := optionDefault.FindStringSubmatch(o.help); m != nil {
			o.value = m[1]
			o.help = optionDefault.ReplaceAllString(o.help, "")
		} else if placeholder {
			o.value = "none"
		}
		o.help = strings.TrimSpace(o.help)
	}
	return all
}

// table is the configuration table, as --help of the programs has it.
func table(t *testing.T) string {
	t.Helper()
	columns := map[string]map[string]string{} // flag, program, default
	var order []option
	for _, program := range programs {
		for _, o := range options(t, program.pkg, program.help...) {
			if o.name == "help" || o.name == "version" {
				continue
			}
			if want := "REJOIN_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_")); o.env != want {
				t.Errorf("--%s of %s has the variable %q, want %q", o.name, program.name, o.env, want)
			}
			if columns[o.name] == nil {
				columns[o.name] = map[string]string{}
				order = append(order, o)
			}
			columns[o.name][program.name] = o.value
		}
	}
	var b strings.Builder
	b.WriteString("| flag | of | default | what it is |\n|---|---|---|---|\n")
	for _, o := range order {
		var of, defaults []string
		for _, program := range programs {
			value, ok := columns[o.name][program.name]
			if !ok {
				continue
			}
			of = append(of, program.name)
			if len(of) == 1 {
				defaults = append(defaults, value)
			} else if value != columns[o.name][of[0]] {
				defaults = append(defaults, program.name+": "+value)
			}
		}
		if len(of) == len(programs) {
			of = []string{"all"}
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", o.name, strings.Join(of, ", "), strings.Join(defaults, "; "), strings.ReplaceAll(o.help, "|", `\|`))
	}
	return b.String()
}

func TestDocument_FlagTables(t *testing.T) {
	t.Parallel()
	checkTable(t, "../docs/configuration.md", "<!-- flags -->\n", "<!-- /flags -->\n", table(t))
}

func TestDocument_CodeTables(t *testing.T) {
	codes := slices.SortedFunc(maps.Keys(web.Codes), func(a, b web.Code) int {
		return cmp.Or(cmp.Compare(web.Codes[a].Status, web.Codes[b].Status), cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("| status | `code` | title |\n|---|---|---|\n")
	for _, code := range codes {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", web.Codes[code].Status, code, web.Codes[code].Title)
	}
	checkTable(t, "../docs/http.md", "<!-- codes -->\n", "<!-- /codes -->\n", b.String())
}

// checkTable compares the text of a document between two comments, or writes it.
func checkTable(t *testing.T, file, begin, end, want string) {
	t.Helper()
	text, _ := document(t, file)
	before, rest, ok := strings.Cut(text, begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	if *update {
		write(t, file, before+begin+want+end+after)
	} else if got != want {
		t.Errorf("the table of %s is not up to date; run this test with -update", file)
		lines := strings.Split(got, "\n")
		for line := range strings.SplitSeq(want, "\n") {
			if !slices.Contains(lines, line) {
				t.Errorf("it lacks %s", line)
			}
		}
	}
}
