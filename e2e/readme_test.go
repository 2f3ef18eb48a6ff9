package e2e

import (
	"bufio"
	"cmp"
	"context"
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
	"time"

	"github.com/chromedp/chromedp"

	"rejoin/services/web"
)

const readmeFile = "../README.md"

// block is a fenced block of the README.
type block struct {
	lang, text string
	from, to   int // where text stands in the file
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?\n)```$")

func readme(t *testing.T) (string, []block) {
	t.Helper()
	data, err := os.ReadFile(readmeFile)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	for _, m := range fence.FindAllSubmatchIndex(data, -1) {
		blocks = append(blocks, block{string(data[m[2]:m[3]]), string(data[m[4]:m[5]]), m[4], m[5]})
	}
	return string(data), blocks
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
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // its exit code is the last command's
	})
	return &terminal{t, cmd, stdin, bufio.NewReader(stdout)}
}

const prompt = "== the next command =="

// run types commands and returns what they print.
func (s *terminal) run(commands string) string {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, commands+"\necho '"+prompt+"'\n"); err != nil {
		s.t.Fatal(err)
	}
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

// What the README tells to type prints what the README shows.
func TestREADMEsCommandsPrintWhatItShows(t *testing.T) {
	text, blocks := readme(t)
	p := startProc(t)
	shell := openTerminal(t, filepath.Dir(p.data))
	shell.run("export REJOIN_NATS_URL=nats://" + p.addrs["--nats-addr"]) // not the port that the README's commands take for granted
	runs, compared, guarded := 0, 0, false
	var edits []block // with -update
	for i, b := range blocks {
		if b.lang != "sh" {
			continue
		}
		switch strings.TrimSpace(b.text) {
		case "make test":
			continue // that is this
		case "make run":
			if runs++; runs > 1 {
				select {
				case <-p.done:
				case <-time.After(patience):
					t.Fatal("the program that was killed goes on")
				}
				p.cmd = nil
				p.start()
			}
			continue
		case "make run ARGS=--auth=jwt":
			guarded = true
			p.stop()
			p.args = append(p.args, "--auth=jwt", "--jwt-secret-file="+filepath.Join(filepath.Dir(p.data), "jwt.secret"), "--jwt-audience=dev")
			p.start()
			continue
		}
		here := strings.NewReplacer("127.0.0.1:8080", p.addrs["--edge-addr"], "bin/rejoin", built(t, rejoinPackage))
		got := shell.run(here.Replace(b.text))
		if i+1 == len(blocks) || blocks[i+1].lang != "text" {
			if got != "" {
				t.Errorf("the README shows no output of\n%sbut it prints\n%s", b.text, got)
			}
			continue
		}
		want := blocks[i+1]
		compared++
		if *update {
			want.text = got
			edits = append(edits, want)
		} else if normal(got) != normal(want.text) {
			t.Errorf("the README shows\n%s\nbut\n%sprints\n%s", want.text, b.text, got)
		}
	}
	if runs != 2 || !guarded || compared < 6 {
		t.Errorf("the README starts the program %d times and shows %d outputs", runs, compared)
	}
	for _, e := range slices.Backward(edits) {
		text = text[:e.from] + e.text + text[e.to:]
	}
	if *update {
		writeREADME(t, text)
	}
}

func writeREADME(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(readmeFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestREADMEsBrowserSnippetContinuesAfterAReload(t *testing.T) {
	t.Parallel()
	_, blocks := readme(t)
	i := slices.IndexFunc(blocks, func(b block) bool { return b.lang == "js" })
	if i < 0 {
		t.Fatal("the README has no browser snippet")
	}
	// In braces it can be pasted twice, as into a page that was loaded again.
	snippet := "window.logged = []; console.log = console.warn = (...what) => logged.push(what); {" + blocks[i].text + "; window.source = source }; true"
	p := startProc(t, "--retry=100ms", "--heartbeat=100ms", "--ack-timeout=1s", "--close-margin=50ms")
	b := openBrowser(t)
	paste := func() {
		b.do(chromedp.Navigate(p.api() + "/"))
		script[bool](b, snippet)
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

	// Closed first: a cursor event would be saved over the place that is wrong.
	script[bool](b, "source.close(), localStorage.setItem('cursor of /v1/sessions/demo/streams/page/events', 'page_0000000_1'), true")
	paste()
	expect("unknown 1 2 3 4 5 6 7")
	do(t, "DELETE", p.api()+"/v1/sessions/demo/streams/page", "")
	b.until("source.readyState == EventSource.CLOSED")
}

func TestREADMEsSnippetOfTheClientContinuesAfterAReload(t *testing.T) {
	t.Parallel()
	_, blocks := readme(t)
	i := slices.IndexFunc(blocks, func(b block) bool { return b.lang == "js" && strings.Contains(b.text, "/rejoin.js") })
	if i < 0 {
		t.Fatal("the README has no snippet of the client")
	}
	snippet := "window.logged = []; console.log = console.warn = (...what) => logged.push(what); (async () => {" + blocks[i].text + "})(); true"
	p := startProc(t, "--ack-timeout=1s", "--close-margin=50ms")
	b := openBrowser(t)
	paste := func() {
		b.do(chromedp.Navigate(p.api() + "/"))
		script[bool](b, snippet)
	}
	for range 2 { // the second time as after a reload
		paste()
		b.until("logged.length == 1 && logged[0][1].params.n == 1 && localStorage.getItem('my place') == logged[0][0]")
	}
	do(t, "DELETE", p.api()+"/v1/sessions/demo/streams/page", "")
	b.until("logged.length == 2 && logged[1][0] == 'the end' && logged[1][1].reason == 'closed'")
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

// options reads a program's help: what args print.
func options(t *testing.T, pkg string, args ...string) []option {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built(t, pkg), args...)
	cmd.Env = withoutRejoin(os.Environ())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
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
	b.WriteString("| flag |")
	for _, program := range programs {
		b.WriteString(" " + program.name + " |")
	}
	b.WriteString(" what it is |\n" + strings.Repeat("|---", len(programs)+2) + "|\n")
	for _, o := range order {
		b.WriteString("| `--" + o.name + "` |")
		for _, program := range programs {
			if value, ok := columns[o.name][program.name]; ok {
				b.WriteString(" " + value + " |")
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteString(" " + strings.ReplaceAll(o.help, "|", `\|`) + " |\n")
	}
	return b.String()
}

func TestREADMEsConfigurationTableIsWhatHelpSays(t *testing.T) {
	checkTable(t, "<!-- flags -->\n", "<!-- /flags -->\n", table(t))
}

func TestREADMEsTableOfCodesIsTheServices(t *testing.T) {
	codes := slices.SortedFunc(maps.Keys(web.Codes), func(a, b web.Code) int {
		return cmp.Or(cmp.Compare(web.Codes[a].Status, web.Codes[b].Status), cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("| status | `code` | title |\n|---|---|---|\n")
	for _, code := range codes {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", web.Codes[code].Status, code, web.Codes[code].Title)
	}
	checkTable(t, "<!-- codes -->\n", "<!-- /codes -->\n", b.String())
}

// checkTable compares what the README has between two comments, or writes it.
func checkTable(t *testing.T, begin, end, want string) {
	t.Helper()
	text, _ := readme(t)
	before, rest, ok := strings.Cut(text, begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("the README has no table between %q and %q", begin, end)
	}
	if *update {
		writeREADME(t, before+begin+want+end+after)
	} else if got != want {
		t.Error("the README's table is not up to date; run this test with -update")
		lines := strings.Split(got, "\n")
		for line := range strings.SplitSeq(want, "\n") {
			if !slices.Contains(lines, line) {
				t.Errorf("the README lacks %s", line)
			}
		}
	}
}
