package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// hostile are texts as a machine might send them, by what they try.
var hostile = map[string]string{
	"script":         `<script>alert("mark")</script>`,
	"attribute":      `" onmouseover="alert('mark')" x="`,
	"image":          `<img src=x onerror=alert(1)>mark</td></tr></table><iframe src="http://mark.example">`,
	"link":           `javascript:alert("mark")`,
	"template":       `{{.}} {{template "head"}} ${mark} </textarea><!--`,
	"terminal":       "\x1b[2J\x1b]0;mark\x07\x9b31m\u009b31m\x1bP mark",
	"lines":          "mark\r\nSet-Cookie: a=b\n\n<b>\u2028\u2029\u0085event: machine\ndata: {}",
	"invalid":        "mark\xff\xfe\xc0\x80\xed\xa0\x80\xf8",
	"null":           "mark\x00\x00mark",
	"64 KiB":         strings.Repeat("mark<b>", 64<<10/7),
	"64 KiB invalid": strings.Repeat("\xff", 64<<10),
	"bidi":           "mark\u202egnp.exe\u2066\u200f\u061c\u2069 \u200bmark\ufeff",
	"marks":          "m\u0301\u0302\u0303\u0304\u0305\u0306a\u0307\u0308\u0309\u030ark",
}

// docs is where a page leads that explains a cause.
const docs = "https://github.com/tinkerbell/stack/blob/main/docs/boots.md#"

// hostileMachine has a text in every field, and the worst of ids.
func hostileMachine(text string) journal.MachineView {
	var m journal.MachineView
	fill(reflect.ValueOf(&m).Elem())
	poison(reflect.ValueOf(&m).Elem(), boot.CleanCut(text, textLength)) // as the journal keeps them: see TestHostileEvents
	m.ID, m.MAC = "aa:54:00:00:00:01", "aa:54:00:00:00:01"
	return m
}

func poison(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		poison(v.Elem(), text)
	case reflect.Slice:
		for i := range v.Len() {
			poison(v.Index(i), text)
		}
	case reflect.Struct:
		switch v.Interface().(type) {
		case time.Time, netip.Addr, netip.AddrPort:
			return
		}
		for i := range v.NumField() {
			poison(v.Field(i), text)
		}
	}
}

// fit tells why a text must not be shown; "" where it may.
func fit(text string) string {
	if !utf8.ValidString(text) {
		return "is not UTF-8"
	}
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == 0x2028 || r == 0x2029) {
			return fmt.Sprintf("has %U", r)
		}
	}
	return ""
}

// elements are those that the pages are made of.
var elements = strings.Fields(`html head meta title link script noscript body header h1 h2 h3 a form input select option button p span time
	main div nav b ul li table thead tbody tr th td svg rect line text code footer kbd section details summary ol dl dt dd em strong pre`)

// checkHTML holds a page to what the templates are made of.
func checkHTML(t *testing.T, where, page string) {
	t.Helper()
	if why := fit(page); why != "" {
		t.Errorf("%s %s", where, why)
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Errorf("%s has a link that html/template takes for a fault", where)
	}
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		if n.Type == html.CommentNode {
			t.Errorf("%s has a comment: %.80s", where, n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(elements, n.Data) {
			t.Errorf("%s has an element %.80s", where, n.Data)
		}
		if n.Data == "script" && (n.FirstChild != nil || len(n.Attr) != 2) {
			t.Errorf("%s has an inline script", where)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc" {
				t.Errorf("%s has an attribute %s=%.80s", where, a.Key, a.Val)
			}
			if (a.Key == "href" || a.Key == "src" || a.Key == "action") && (strings.Contains(strings.TrimPrefix(a.Val, docs), "//") || strings.Contains(a.Val, "script:")) {
				t.Errorf("%s leads away: %s=%.80s", where, a.Key, a.Val)
			}
		}
	}
}

// checkTexts holds all texts of a JSON value to what may be shown.
func checkTexts(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for name, each := range v {
			checkTexts(t, where+"."+name, each)
		}
	case []any:
		for _, each := range v {
			checkTexts(t, where, each)
		}
	case string:
		if why := fit(v); why != "" || len(v) > textLength {
			t.Errorf("%s %s, %d bytes: %.80q", where, why, len(v), v)
		}
	}
}

func TestHostileTexts(t *testing.T) {
	for name, text := range hostile {
		t.Run(name, func(t *testing.T) {
			m := hostileMachine(text)
			server := serve(t, Options{Journal: newFake(m)})
			for _, path := range []string{"/boots", "/boots/" + m.ID, "/boots?q=mark", "/boots/nobody"} {
				_, _, body := get(t, server.URL+path)
				checkHTML(t, path, body)
				if len(body) > 64<<10 {
					t.Errorf("%s has %d bytes", path, len(body))
				}
			}
			for _, path := range []string{"/api/v1/boots", "/api/v1/boots/" + m.ID} {
				_, _, body := get(t, server.URL+path)
				var v any
				if err := json.Unmarshal([]byte(body), &v); err != nil {
					t.Fatal(err)
				}
				checkTexts(t, path, v)
			}
			for path, want := range map[string]string{
				"/boots/live": "list", "/boots/" + m.ID + "/live": "machine",
			} {
				lines := events(t, server.URL+path)
				event := ""
				for lines.Scan() {
					if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
						event = kind
						continue
					}
					data, ok := strings.CutPrefix(lines.Text(), "data: ")
					if !ok && lines.Text() != "" {
						t.Fatalf("%s: a machine made a line of its own: %.80q", path, lines.Text())
					}
					if event != want || !ok {
						continue
					}
					var v any
					if err := json.Unmarshal([]byte(data), &v); err != nil {
						t.Fatal(err)
					}
					for _, part := range markupOf(v) {
						checkHTML(t, path, part)
					}
					break
				}
			}
		})
	}
}

// markupOf finds the texts with elements in an update, as parts of a page.
func markupOf(v any) (parts []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, each := range v {
			text, ok := each.(string)
			switch {
			case ok && (name == "html" || name == "heading" || name == "parts"):
				parts = append(parts, text)
			case ok && strings.HasPrefix(text, "<tr"):
				parts = append(parts, "<table><tbody>"+text)
			default:
				parts = append(parts, markupOf(each)...)
			}
		}
	case []any:
		for _, each := range v {
			parts = append(parts, markupOf(each)...)
		}
	}
	return parts
}

// A query is as hostile as a machine.
func TestHostileQueries(t *testing.T) {
	server := serve(t, Options{Journal: newFake(site(3, time.Now())...)})
	for name, text := range hostile {
		if len(text) > 4<<10 {
			continue
		}
		query := strings.NewReplacer("%", "%25").Replace(text)
		var b strings.Builder
		for i := range len(query) {
			fmt.Fprintf(&b, "%%%02x", text[min(i, len(text)-1)])
		}
		for _, path := range []string{"/boots?q=", "/boots?state=", "/boots?limit=", "/boots/"} {
			_, header, body := get(t, server.URL+path+b.String())
			if strings.HasPrefix(header.Get("Content-Type"), "text/html") {
				checkHTML(t, name+" "+path, strings.ReplaceAll(body, "\r\n", "\n"))
			}
		}
	}
}

// What the journal itself makes of hostile events.
func TestHostileEvents(t *testing.T) {
	j := journal.New(journal.Options{Pod: "me"})
	at := time.Now()
	for _, text := range hostile {
		for _, kind := range []boot.Kind{boot.DHCPRequest, boot.DHCPReply, boot.TFTP, boot.HTTP, boot.Stream, boot.Syslog} {
			at = at.Add(time.Millisecond)
			e := boot.Event{
				At: at.UnixNano(), Kind: kind, DHCP: 1, MAC: [6]byte{0x52, 0x54, 0, 0, 0, 1}, Outcome: boot.Done, Status: 404,
				Client: netip.MustParseAddr("::ffff:192.0.2.1").As16(), Given: netip.MustParseAddr("::ffff:192.0.2.1").As16(),
			}
			for f := boot.VendorClass; f <= boot.Reason; f++ {
				boot.SetText(&e, f, 60, text)
			}
			j.Record(&e)
		}
	}
	j.Tick(at.Add(time.Minute))
	if len(j.Machines()) == 0 {
		t.Fatal("nothing was heard")
	}
	server := serve(t, Options{Journal: j})
	paths := []string{"/boots"}
	for _, m := range j.Machines() {
		paths = append(paths, "/boots/"+m.ID)
	}
	for _, path := range paths {
		status, _, body := get(t, server.URL+path)
		if checkHTML(t, path, body); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		_, _, body = get(t, server.URL+"/api/v1"+path)
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		checkTexts(t, path, v)
	}
}

// The pages may load and run nothing but their own files, whatever is in them.
func TestContentPolicy(t *testing.T) {
	server := serve(t, Options{Journal: newFake(site(3, time.Now())...)})
	for _, path := range []string{"/boots", "/boots/52:54:00:5e:00:00", "/boots/none", "/boots/static/boots.js", "/api/v1/boots", "/boots?limit=x"} {
		_, header, _ := get(t, server.URL+path)
		policy := header.Get("Content-Security-Policy")
		for _, want := range []string{
			"default-src 'none'", "style-src 'self'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
		} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: no %s in %q", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", path, header)
		}
	}
	for name, text := range staticFiles {
		if strings.Contains(strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", ""), "://") {
			t.Errorf("%s names another server", name)
		}
	}
}
