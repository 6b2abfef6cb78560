package browser

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// free is an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// startProxy starts the real stack-proxy with routes of every kind that a browser could ask, and stack-boots beside it.
// It returns where the routes and the admin port of stack-boots are.
func startProxy(t *testing.T) (fronts map[string]string, admin string) {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "backend")
	}))
	t.Cleanup(backend.Close)
	dir, err := os.MkdirTemp("", "boots") // a short path, as a socket needs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	admin = free(t)
	socket := filepath.Join(dir, "events.sock")
	fronts = map[string]string{"http": free(t), "tcp": free(t), "grpc": free(t), "files": free(t)}
	var text strings.Builder
	text.WriteString("routes:\n")
	for protocol, address := range fronts {
		to := fmt.Sprintf("backends: %q", strings.TrimPrefix(backend.URL, "http://"))
		if protocol == "files" {
			to = fmt.Sprintf("files: {directory: %q}", dir)
		}
		fmt.Fprintf(&text, "- {name: %s, protocol: %s, listen: %q, %s}\n", protocol, protocol, address, to)
	}
	routes := filepath.Join(dir, "routes.yaml")
	if err := os.WriteFile(routes, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program.ForTest(t, "stack-proxy"))
	cmd.Env = []string{
		"STACK_PROXY_ROUTES_FILE=" + routes, "STACK_PROXY_ADMIN_ADDRESS=" + free(t), "STACK_PROXY_BOOTS_ADDRESS=" + socket,
		"STACK_PROXY_DRAIN_GRACE=0s",
	}
	started := func(cmd *exec.Cmd, address string) {
		p, err := process.Start(t.Context(), cmd, process.Options{Ready: process.Answers("http://" + address + "/readyz")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() {
				t.Log(p.Said())
			}
		})
	}
	boots := exec.Command(program.ForTest(t, "stack-boots"))
	boots.Env = []string{"STACK_BOOTS_ADMIN_ADDRESS=" + admin, "STACK_BOOTS_LISTEN_ADDRESS=" + socket}
	started(boots, admin)
	started(cmd, strings.TrimPrefix(cmd.Env[1], "STACK_PROXY_ADMIN_ADDRESS="))
	return fronts, admin
}

// fetch sends a request as it is written, and returns the status and all that was answered.
func fetch(address, target, host string) (status int, answer string) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = conn.Close() }()
	if host == "" {
		host = address
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host)
	text, _ := io.ReadAll(conn)
	_, _ = fmt.Sscanf(string(text), "HTTP/1.1 %d", &status)
	return status, string(text)
}

// The pages and the API are on the admin port and nowhere else: what a machine can reach of the Service are the routes,
// however it asks them.
func TestServiceDoesNotReachThePage(t *testing.T) {
	fronts, admin := startProxy(t)
	targets := []string{
		"/boots", "/boots/", "//boots", "/%62oots", "/x/../boots", "/boots/live", "/boots/static/boots.css", "/api/v1/boots",
		"/api/v1/openapi.yaml", "http://" + admin + "/boots", "/boots?page=1", "/metrics",
	}
	for _, target := range targets {
		for protocol, front := range fronts {
			for _, host := range []string{"", admin, "localhost", "stack-proxy"} {
				status, answer := fetch(front, target, host)
				_, body, _ := strings.Cut(answer, "\r\n\r\n")
				switch {
				case status == http.StatusOK && protocol != "files" && strings.Contains(body, "backend"):
				case status >= 300 && !strings.Contains(strings.ToLower(answer), "content-security-policy"):
				case status == 0: // no HTTP/1.1, as a route of gRPC
				default:
					t.Errorf("%s %s of %q: %.300s", protocol, target, host, answer)
				}
			}
		}
	}
	if status, answer := fetch(admin, "/boots", ""); status != http.StatusOK || !strings.Contains(answer, "<title>Boots</title>") {
		t.Errorf("the admin port itself: %.300s", answer)
	}
}

// What passes through the real stack-proxy arrives in a browser that looks, step by step.
func TestRealStepsArrive(t *testing.T) {
	fronts, admin := startProxy(t)
	_, chromium, _ := start(t)
	tab, shut := open(t, chromium, views[0])
	defer shut()
	if err := tab.load("http://"+admin+"/boots", "#parts p"); err != nil {
		t.Fatal(err)
	}
	tab.until(t, "the stream", isLive)
	row := `document.querySelector('#rows tr[data-id="02:00:00:00:00:07"]')`
	for _, step := range [][2]string{{"/02:00:00:00:00:07/auto.ipxe", "Script"}, {"/vmlinuz-x86_64", "Kernel"}} {
		begin := time.Now()
		if status, answer := fetch(fronts["http"], step[0], ""); status != http.StatusOK {
			t.Fatal(answer)
		}
		tab.until(t, step[1], row+" !== null && "+row+".querySelector('.far').innerText.trim().startsWith('"+step[1]+"')")
		t.Logf("%s arrived after %v", step[1], time.Since(begin))
	}
	if complaints := tab.complaints(); len(complaints) > 0 {
		t.Errorf("the browser complains: %q", complaints)
	}
}

// A web page that is open in the browser of somebody who may look cannot: neither by a name of its own that leads here,
// nor by a request across sites. Who asks wrongly is told so.
func TestForeignPagesAreRefused(t *testing.T) {
	fronts, admin := startProxy(t)
	if status, answer := fetch(fronts["http"], "/02:00:00:00:00:08/auto.ipxe", ""); status != http.StatusOK {
		t.Fatal(answer)
	}
	machine := "/api/v1/boots/02:00:00:00:00:08"
	client := &http.Client{Timeout: 10 * time.Second}
	ask := func(path, host, site string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			request.Host = host
		}
		if site != "" {
			request.Header.Set("Sec-Fetch-Site", site)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		return response.StatusCode, response.Header.Get("Content-Type")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if status, _ := ask(machine, "", ""); status == http.StatusOK {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the machine never came: %d", status)
		}
	}
	for _, path := range []string{"/boots", "/boots/02:00:00:00:00:08", "/boots/live", "/api/v1/boots", machine} {
		if status, _ := ask(path, "evil.example", ""); status != http.StatusMisdirectedRequest {
			t.Errorf("%s by a foreign name: %d", path, status)
		}
		if status, _ := ask(path, "", "cross-site"); status != http.StatusForbidden {
			t.Errorf("%s across sites: %d", path, status)
		}
	}
	for path, want := range map[string]int{
		"/api/v1/boots?state=asleep": http.StatusBadRequest, "/api/v1/boots?step=asleep": http.StatusBadRequest,
		"/api/v1/boots/02:00:00:00:00:99": http.StatusNotFound,
	} {
		if status, kind := ask(path, "", ""); status != want || kind != "application/problem+json" {
			t.Errorf("%s: %d, %s, want %d", path, status, kind, want)
		}
	}
}
