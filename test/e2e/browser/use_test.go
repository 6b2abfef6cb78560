package browser

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// do runs actions, which may take a while on a busy machine.
func (t *tab) do(test *testing.T, what string, actions ...chromedp.Action) {
	test.Helper()
	ctx, cancel := context.WithTimeout(t, answerTime)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		test.Fatalf("%s: %v", what, err)
	}
}

// until waits for an expression to hold, which is evaluated from outside: the page's own scripts may be off.
func (t *tab) until(test *testing.T, what, expression string) {
	test.Helper()
	evaluate := func(expression string, result any) error {
		ctx, cancel := context.WithTimeout(t, answerTime)
		defer cancel()
		return chromedp.Run(ctx, chromedp.Evaluate(expression, result))
	}
	for end := time.Now().Add(answerTime); ; time.Sleep(20 * time.Millisecond) {
		var holds bool
		if err := evaluate(expression, &holds); err == nil && holds {
			return
		}
		if time.Now().After(end) {
			var text string
			_ = evaluate("location.href + '\\n' + document.body.innerText", &text)
			test.Fatalf("%s never came; the page is\n%s", what, text)
		}
	}
}

func (t *tab) count(test *testing.T, selector string) int {
	test.Helper()
	var nodes []*cdp.Node
	t.do(test, "count "+selector, chromedp.Nodes(selector, &nodes, chromedp.ByQueryAll, chromedp.AtLeast(0)))
	return len(nodes)
}

// press presses a key as a person does, so that a page that takes it keeps it from the field that it goes to.
func press(key string) chromedp.Action {
	return chromedp.Tasks{
		input.DispatchKeyEvent(input.KeyDown).WithKey(key).WithText(key), input.DispatchKeyEvent(input.KeyUp).WithKey(key),
	}
}

const isLive = "document.querySelector('#live').className === 'on'"

// A person looks for a machine, opens it, sees a step arrive, and fetches its packets.
func TestUse(t *testing.T) {
	s, chromium, _ := start(t)
	if err := s.machines(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	tab, shut := open(t, chromium, views[0])
	defer shut()
	if err := tab.load(s.base+"/boots", rows); err != nil {
		t.Fatal(err)
	}
	if n := tab.count(t, rows); n != 30 {
		t.Errorf("%d rows", n)
	}
	var first string
	tab.do(t, "first row", chromedp.AttributeValue(rows, "class", &first, nil, chromedp.ByQuery))
	if !strings.Contains(first, "stuck") {
		t.Errorf("the first row is %q", first)
	}

	// Filters, by hand and by keys.
	tab.until(t, "the stream", isLive)
	tab.do(t, "search", press("/"), chromedp.SendKeys("input[name=q]", "rack01-node21", chromedp.ByQuery))
	tab.until(t, "one row", "document.querySelectorAll('#rows tr').length === 1 && location.search === '?q=rack01-node21'")
	tab.do(t, "stuck only", chromedp.Evaluate("document.activeElement.blur()", nil), press("a"))
	tab.do(t, "all", chromedp.Navigate(s.base+"/boots"), press("s"))
	tab.until(t, "stuck machines", "location.search === '?state=stuck' && document.querySelectorAll('#rows tr').length === 2")

	// A step arrives in the list, without the page being loaded again.
	tab.do(t, "all", chromedp.Navigate(s.base+"/boots"), chromedp.Evaluate("window.mark = 1", nil))
	tab.until(t, "the stream", isLive)
	m, err := s.machine(t.Context(), bootID)
	if err != nil {
		t.Fatal(err)
	}
	m.step("script", "/auto.ipxe")
	begin := time.Now()
	if err := s.put(t.Context(), "/test/machine", m); err != nil {
		t.Fatal(err)
	}
	row := "document.querySelector('#rows tr[data-id=\"" + bootID + "\"]')"
	tab.until(t, "the step", row+".querySelector('.far').innerText.includes('Script') && window.mark === 1")
	t.Logf("a step arrived in the list after %v", time.Since(begin))

	// Keys open the first machine; its failed step is open and tells the answer.
	tab.do(t, "open", press("j"), chromedp.KeyEvent(kb.Enter))
	tab.until(t, "the machine", "location.pathname.startsWith('/boots/52:54:00:5e:00:') && document.querySelector('.cause .remedy') !== null")
	tab.until(t, "the answer", "document.querySelector('details[open] .failed .result').innerText === '404'")
	tab.until(t, "the stream", isLive) // the page heeds keys then
	tab.do(t, "back", press("u"))
	tab.until(t, "the list", "location.pathname === '/boots'")

	// A step arrives on the machine's page, and what was opened by hand stays open.
	if err := tab.load(s.base+"/boots/"+bootID, "details summary"); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the stream", isLive)
	tab.do(t, "open a step", chromedp.Click("details[data-key='0'] summary", chromedp.ByQuery), chromedp.Evaluate("window.mark = 1", nil))
	m.step("kernel", "/vmlinuz-x86_64")
	begin = time.Now()
	if err := s.put(t.Context(), "/test/machine", m); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the step", "[...document.querySelectorAll('details .step')].some(s => s.innerText.includes('Kernel')) && window.mark === 1")
	t.Logf("a step arrived on the machine's page after %v", time.Since(begin))
	tab.until(t, "the open step", "document.querySelector('details[data-key=\"0\"]').open")

	// What changes is read aloud, and nothing that changes each second.
	m.boot()["state"] = "stuck"
	if err := s.put(t.Context(), "/test/machine", m); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the state, read aloud", "document.querySelector('#said[role=status]').textContent === 'It is stuck'")
	if n := tab.count(t, "[role=status] time"); n != 0 {
		t.Errorf("%d times are read aloud", n)
	}

	// Letters can be left alone, and times be those of the place; the browser remembers both.
	tab.do(t, "keys off", chromedp.Click(".keys button", chromedp.ByQuery), press("u"))
	tab.do(t, "local times", emulation.SetTimezoneOverride("Pacific/Kiritimati"), chromedp.Click(".live button", chromedp.ByQuery))
	if err := tab.load(s.base+"/boots", rows); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the choices", "document.querySelector('.keys button').textContent === 'keys off' && document.querySelector('.live button').textContent === 'local'")
	tab.until(t, "the hour there", "(+document.querySelector('#clock').textContent.split(' ')[2].slice(0, 2) - new Date().getUTCHours() + 24) % 24 === 14")
	tab.do(t, "a letter", press("s"))
	if n := tab.count(t, rows); n != 30 {
		t.Errorf("a letter was taken: %d rows", n)
	}

	if complaints := tab.complaints(); len(complaints) > 0 {
		t.Errorf("the browser complains: %q", complaints)
	}
}

// The same without JavaScript: forms, links and steps work, and the pages load themselves again.
func TestUseWithoutScript(t *testing.T) {
	s, chromium, repo := start(t)
	if err := s.machines(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	without := views[0]
	without.name, without.script = "noscript", false
	tab, shut := open(t, chromium, without)
	defer shut()
	if err := tab.load(s.base+"/boots", rows); err != nil {
		t.Fatal(err)
	}
	if err := tab.shoot(filepath.Join(repo, "build", "boots", "list-30-noscript.png")); err != nil {
		t.Fatal(err)
	}
	tab.do(t, "search", chromedp.SendKeys("input[name=q]", "node21", chromedp.ByQuery), chromedp.Click("form button", chromedp.ByQuery))
	tab.until(t, "one row", "document.querySelectorAll('#rows tr').length === 1 && location.search.includes('q=node21')")
	tab.do(t, "clear", chromedp.Click(".clear", chromedp.ByQuery))
	tab.until(t, "all rows", "document.querySelectorAll('#rows tr').length === 30 && location.search === ''")
	tab.do(t, "stuck only", chromedp.Click(".chip.stuck", chromedp.ByQuery))
	tab.until(t, "stuck machines", "document.querySelectorAll('#rows tr').length === 2")
	tab.do(t, "open", chromedp.Click("#rows .who a", chromedp.ByQuery))
	tab.until(t, "the machine", "document.querySelector('.cause .remedy') !== null")

	if err := tab.load(s.base+"/boots/"+bootID, "details summary"); err != nil {
		t.Fatal(err)
	}
	tab.do(t, "open a step", chromedp.Click("details[data-key='0'] summary", chromedp.ByQuery))
	tab.until(t, "its answers", "document.querySelector('details[data-key=\"0\"]').open")
	m, err := s.machine(t.Context(), bootID)
	if err != nil {
		t.Fatal(err)
	}
	m.step("script", "/auto.ipxe")
	if err := s.put(t.Context(), "/test/machine", m); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the step, when the page has loaded itself again",
		"[...document.querySelectorAll('details .step')].some(s => s.innerText.includes('Script'))")
	if complaints := tab.complaints(); len(complaints) > 0 {
		t.Errorf("the browser complains: %q", complaints)
	}
}
