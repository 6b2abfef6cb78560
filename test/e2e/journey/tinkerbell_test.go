package journey_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// modern has a journey go through the modern Tinkerbell.
func modern(t *testing.T, opts *journey.Options) {
	t.Helper()
	tinkerbell, err := program.BuildTinkerbell(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	opts.Lab.Tinkerbell = &tinkerbell
}

// checkModern looks at how a journey through the modern Tinkerbell went: every step, by the ports and paths of the preset, a
// workflow that its own agent ran to the end, and so many requests refused.
func checkModern(t *testing.T, j *journey.Journey, refused int) {
	t.Helper()
	var got []string
	details := map[string]string{}
	machine := j.Result.Machines[0]
	for _, step := range machine.Steps {
		got, details[step.Name] = append(got, step.Name), step.Detail
	}
	if diff := cmp.Diff(journey.Steps(true), got); diff != "" {
		t.Errorf("the steps (-want +got): %s", diff)
	}
	for step, parts := range map[string][]string{
		journey.StepTFTP:      {"undionly.kpxe", " from 192.0.2.2:69"},
		journey.StepScript:    {"/ipxe/script/", "/auto.ipxe", " from 192.0.2.2:7080"},
		journey.StepKernel:    {" from 192.0.2.2:7173"},
		journey.StepInitramfs: {" from 192.0.2.2:7173"},
		journey.StepGRPC:      {"by Tinkerbell's agent"},
	} {
		for _, part := range parts {
			if !strings.Contains(details[step], part) {
				t.Errorf("%s: %q does not tell of %q", step, details[step], part)
			}
		}
	}
	if j.Result.Tinkerbell != "v0.25.0" || machine.Workflow != "SUCCESS" {
		t.Errorf("Tinkerbell %q has the workflow as %q", j.Result.Tinkerbell, machine.Workflow)
	}
	if got := refusedPaths(t, j.Lab); got != refused {
		t.Errorf("%d requests were refused for their paths, want %d", got, refused)
	}
}

// A board that boots by U-Boot's pxelinux.cfg, and its configuration's name.
var board = lab.Machine{
	Name: "board", MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 9, 1}, IP: netip.MustParseAddr("192.0.2.190"),
	PXELinux: "default hook\nlabel hook\n  kernel vmlinuz\n",
}

const boardName = "01-52-54-00-00-09-01"

// servesMore has Tinkerbell serve ISOs, files of its own, and pxelinux.cfg by HTTP, too.
func servesMore(t *testing.T, opts *lab.Options) {
	t.Helper()
	assets := t.TempDir()
	if err := os.MkdirAll(filepath.Join(assets, "fw"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(assets, "fw", "start4.elf"), bytes.Repeat([]byte("firmware"), 5000), 0o644); err != nil {
		t.Fatal(err)
	}
	opts.Machines = append(opts.Machines, board)
	iso := "http://" + netip.AddrPortFrom(lab.PodIP, lab.TinkerbellFilesPort).String() + "/" + machine.ArtifactFile
	opts.Env = map[string][]string{lab.Tinkerbell: {
		"TINKERBELL_TFTP_ASSET_DIR=" + assets, "TINKERBELL_PXE_HTTP_ENABLED=true",
		"TINKERBELL_ISO_ENABLED=true", "TINKERBELL_ISO_UPSTREAM_URL=" + iso,
	}}
}

// checkISO reads Tinkerbell's ISO in ranges as a BMC does, its end first: the same pieces as from Tinkerbell itself.
func checkISO(t *testing.T, l *lab.Lab, host string) {
	const at = "/iso/52:54:00:00:09:01/hook.iso"
	ask := func(role string, service netip.Addr, path, ranges string) (status int, content string, body []byte) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		url := "http://" + netip.AddrPortFrom(service, lab.TinkerbellHTTPPort).String() + path
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Error(err)
			return 0, "", nil
		}
		if ranges != "" {
			request.Header.Set("Range", "bytes="+ranges)
		}
		response, err := l.Client(role).Do(request)
		if err != nil {
			t.Error(err)
			return 0, "", nil
		}
		defer func() { _ = response.Body.Close() }()
		if body, err = io.ReadAll(response.Body); err != nil {
			t.Error(err)
		}
		return response.StatusCode, response.Header.Get("Content-Range"), body
	}
	for _, test := range []struct {
		path, ranges string
		want         int
	}{
		{at, "8323072-8388607", http.StatusPartialContent},
		{at, "0-65535", http.StatusPartialContent},
		{at, "32768-32768", http.StatusPartialContent},
		{"/iso/nomac/hook.iso", "", http.StatusBadRequest},
		{"/iso/52:54:00:00:09:01/hook.img", "", http.StatusNotFound},
	} {
		status, content, body := ask(lab.RolePod, lab.SmeeIP, test.path, test.ranges)
		through, ours, piece := ask(host, lab.ServiceIP, test.path, test.ranges)
		if status != test.want || through != status || ours != content || !bytes.Equal(piece, body) {
			t.Errorf("%s of %q: got %d, %q, %d bytes from Tinkerbell; %d, %q, %d bytes through stack-proxy; want %d",
				test.ranges, test.path, status, content, len(body), through, ours, len(piece), test.want)
		}
	}
}

// checkTFTP reads by names of every kind: the same as from Tinkerbell itself, a refusal too.
func checkTFTP(t *testing.T, l *lab.Lab, host string) {
	read := func(role string, service netip.Addr, name string) ([]byte, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		conn, err := l.Dial(role)(ctx, "udp", netip.AddrPortFrom(service, 69).String())
		if err != nil {
			t.Error(err)
			return nil, ""
		}
		defer func() { _ = conn.Close() }()
		content, err := netboot.ReadFile(ctx, conn, name)
		if err != nil {
			return nil, strings.ReplaceAll(err.Error(), service.String(), "SERVER")
		}
		return content, ""
	}
	const trace = "-00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for name, served := range map[string]bool{
		"snp-arm64.efi":                   true,
		"/undionly.kpxe":                  true,
		"52:54:00:00:09:01/undionly.kpxe": true,
		"a/b/c/undionly.kpxe":             true,
		"undionly.kpxe" + trace:           true,
		"pxelinux.cfg/" + boardName:       true,
		"/pxelinux.cfg/" + boardName:      false,
		"pxelinux.cfg/default":            false,
		"fw/start4.elf":                   true,
		"../fw/start4.elf":                false,
		// A Raspberry Pi's, which Tinkerbell knows by its address alone.
		"1234abcd/config.txt": false,
		"autoexec.ipxe":       false,
	} {
		want, refused := read(lab.RolePod, lab.SmeeIP, name)
		got, said := read(host, lab.ServiceIP, name)
		t.Logf("%s: %d bytes, %q", name, len(got), said)
		if !bytes.Equal(got, want) || said != refused || (refused == "") != served {
			t.Errorf("%s: got %d bytes, %q from Tinkerbell; %d bytes, %q through stack-proxy; want it served: %t",
				name, len(want), refused, len(got), said, served)
		}
	}
}

// hidden is what Tinkerbell serves and the preset hides from machines.
var hidden = []string{"/metrics", "/smee/metrics", "/healthcheck", "/readyz"}

// checkPreset asks as a machine for what machines ask Tinkerbell for: it passes. What is hidden does not. It is not
// called by the test's own goroutine, and so ends nothing.
func checkPreset(t *testing.T, l *lab.Lab, host string) {
	ask := func(role string, at netip.Addr, path string) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		url := "http://" + netip.AddrPortFrom(at, lab.TinkerbellHTTPPort).String() + path
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		response, err := l.Client(role).Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer func() { _ = response.Body.Close() }()
		if n, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Errorf("%s: %d bytes, then %v", path, n, err)
		}
		return response.StatusCode
	}
	if got := refusedPaths(t, l); got != 0 {
		t.Errorf("%d requests of the machine were refused for their paths", got)
	}
	for path, want := range map[string]int{
		"/ipxe/binary/undionly.kpxe":      http.StatusOK, // HTTP boot
		"/ipxe/binary/ipxe.efi":           http.StatusOK,
		"/ipxe/binary/snp-arm64.efi":      http.StatusOK,
		"/tftp/pxelinux.cfg/" + boardName: http.StatusOK,
		"/tftp/pxelinux.cfg/default":      http.StatusNotFound,
	} {
		direct, through := ask(lab.RolePod, lab.SmeeIP, path), ask(host, lab.ServiceIP, path)
		t.Logf("%s: %d from Tinkerbell, %d through stack-proxy", path, direct, through)
		if direct != want || through != want {
			t.Errorf("%s: got %d from Tinkerbell, %d through stack-proxy, want %d", path, direct, through, want)
		}
	}
	if got := refusedPaths(t, l); got != 0 {
		t.Errorf("%d requests for what machines need were refused for their paths", got)
	}
	for _, path := range hidden {
		direct, through := ask(lab.RolePod, lab.SmeeIP, path), ask(host, lab.ServiceIP, path)
		if direct != http.StatusOK || through != http.StatusNotFound {
			t.Errorf("%s: got %d from Tinkerbell, %d through stack-proxy, want 200 and 404", path, direct, through)
		}
	}
}

// refusedPaths sums stack-proxy's counter of the requests that were refused for their paths; -1 is unknown.
func refusedPaths(t *testing.T, l *lab.Lab) (sum int) {
	t.Helper()
	url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(lab.PodIP, lab.ProxyAdminPort))
	text, err := l.Page(t.Context(), lab.RolePod, url)
	if err != nil {
		t.Error(err)
		return -1
	}
	series := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "stack_proxy_paths_refused_total{") {
			continue
		}
		series++
		var n int
		if _, err := fmt.Sscan(line[strings.LastIndex(line, "}")+1:], &n); err != nil {
			t.Errorf("%s: %v", line, err)
			return -1
		}
		sum += n
	}
	if series == 0 {
		t.Error("stack-proxy counts no refused paths")
		return -1
	}
	return sum
}
