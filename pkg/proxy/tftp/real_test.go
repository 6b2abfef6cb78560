package tftp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// program finds a real peer, or skips the test.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	t.Skipf("needs %s (apt-get install %s)", name, debian)
	return ""
}

// run runs a client to its end.
func run(t testing.TB, ns *nstest.NS, dir string, args ...string) error {
	t.Helper()
	return ns.Try(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // 65,000 blocks one by one, on a busy machine
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out.String())
		}
		return nil
	})
}

// start runs a server until the test's end; without a namespace in the test's own.
func start(t testing.TB, ns *nstest.NS, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	launch := cmd.Start
	if ns != nil {
		launch = func() error { return ns.Try(cmd.Start) }
	}
	if err := launch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%v: %s", args, out.String())
		}
	})
}

// servers are ordinary ones, where each transfer has a port of its own, and one that answers from its only port.
func servers(t *testing.T) map[string]func(ns *nstest.NS, root string) {
	return map[string]func(ns *nstest.NS, root string){
		"dnsmasq": func(ns *nstest.NS, root string) {
			start(t, ns, program(t, "dnsmasq", "dnsmasq-base"), "--no-daemon", "--conf-file=/dev/null", "--port=0",
				"--enable-tftp", "--tftp-root="+root, "--user=root", "--listen-address="+serverIP, "--pid-file=")
		},
		"tftpd-hpa": func(ns *nstest.NS, root string) {
			start(t, ns, program(t, "in.tftpd", "tftpd-hpa"), "--foreground", "--address", serverIP+":69",
				"--user", "root", "--secure", root)
		},
		"single port": func(ns *nstest.NS, root string) {
			files := map[string][]byte{}
			entries, err := os.ReadDir(root)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if files[entry.Name()], err = os.ReadFile(filepath.Join(root, entry.Name())); err != nil {
					t.Fatal(err)
				}
			}
			(&fileServer{files: files, singlePort: true}).listen(t, ns, serverIP+":69")
		},
		itself: func(*nstest.NS, string) {},
	}
}

// itself is the proxy as the server.
const itself = "boot files"

// realConfig is a front before one of servers.
func realConfig(server, root string) Config {
	c := Config{Pick: to(serverIP + ":69")}
	if server == itself {
		c.Boot = bootfile.Config{Directory: root, Path: "."}
	}
	return c
}

func TestRealPeers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start the servers")
	}
	hpa, atftp := program(t, "tftp", "tftp-hpa"), program(t, "atftp", "atftp")
	busybox, curl := program(t, "busybox", "busybox"), program(t, "curl", "curl")
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]int{"small": 100, "even": 1024, "big": 2 << 20}
	for name, size := range files {
		if err := os.WriteFile(filepath.Join(root, name), content(size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, server := range servers(t) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			server(l.server, root)
			f := l.front(t, realConfig(name, root))
			// Before the server listens its kernel refuses, which the front passes on by silence.
			testwait.Until(t, name+" up", func() bool {
				got, err := fetch{file: "small", tries: 1}.run(l.client, proxyIP+":69")
				return err == nil && len(got) == files["small"]
			})
			dir := t.TempDir()
			for i, args := range [][]string{
				{hpa, "-m", "binary", proxyIP, "-c", "get", "small", "got"},
				{hpa, "-m", "binary", proxyIP, "-c", "get", "even", "got"},
				{hpa, "-m", "binary", proxyIP, "-c", "get", "big", "got"},
				{atftp, "--get", "-r", "big", "-l", "got", proxyIP},
				{atftp, "--option", "blksize 65464", "--option", "tsize enable", "--get", "-r", "big", "-l", "got", proxyIP},
				{atftp, "--option", "windowsize 16", "--option", "blksize 1428", "--get", "-r", "big", "-l", "got", proxyIP},
				{busybox, "tftp", "-g", "-r", "big", "-l", "got", "-b", "1468", proxyIP},
				{busybox, "tftp", "-g", "-r", "even", "-l", "got", proxyIP},
				{curl, "-sS", "-o", "got", "tftp://" + proxyIP + "/big"},
				{curl, "-sS", "--tftp-blksize", "65464", "-o", "got", "tftp://" + proxyIP + "/big"},
				{curl, "-sS", "--tftp-no-options", "-o", "got", "tftp://" + proxyIP + "/even"},
			} {
				if err := run(t, l.client, dir, args...); err != nil {
					t.Error(err)
					continue
				}
				got, err := os.ReadFile(filepath.Join(dir, "got"))
				if err != nil {
					t.Errorf("%d: %v", i, err)
					continue
				}
				want, ok := content(0), false
				for _, size := range files {
					if size == len(got) {
						want, ok = content(size), true
					}
				}
				if !ok || !bytes.Equal(got, want) {
					t.Errorf("%v: got %d bytes that differ", args, len(got))
				}
				_ = os.Remove(filepath.Join(dir, "got"))
			}
			if got := f.drops(datagram.DropStranger) + f.drops(DropUnexpected) + f.drops(DropMalformed); got != 0 {
				t.Errorf("%d datagrams of honest peers dropped", got)
			}
			testwait.Until(t, "twelve transfers completed", func() bool { return f.outcomes(EndingCompleted) >= 12 })
		})
	}
}

// Beyond 32 MiB in blocks of 512 bytes the block counter begins anew.
func TestBeyondTheBlockCounter(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start the server")
	}
	if testing.Short() {
		t.Skip("takes seconds")
	}
	hpa, atftp, curl := program(t, "tftp", "tftp-hpa"), program(t, "atftp", "atftp"), program(t, "curl", "curl")
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	want := content(33<<20 + 5)
	if err := os.WriteFile(filepath.Join(root, "huge"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		server string
		client []string
	}{
		{"tftpd-hpa", []string{hpa, "-m", "binary", proxyIP, "-c", "get", "huge", "got"}},
		{"dnsmasq", []string{curl, "-sS", "--tftp-blksize", "512", "-o", "got", "tftp://" + proxyIP + "/huge"}},
		{"single port", []string{atftp, "--option", "windowsize 16", "--get", "-r", "huge", "-l", "got", proxyIP}},
		{itself, []string{atftp, "--option", "windowsize 16", "--get", "-r", "huge", "-l", "got", proxyIP}},
		{itself, []string{hpa, "-m", "binary", proxyIP, "-c", "get", "huge", "got"}},
	} {
		t.Run(tt.server, func(t *testing.T) {
			l := newLab(t)
			servers(t)[tt.server](l.server, root)
			f := l.front(t, realConfig(tt.server, root))
			dir := t.TempDir()
			testwait.Until(t, "fetched", func() bool { return run(t, l.client, dir, tt.client...) == nil })
			got, err := os.ReadFile(filepath.Join(dir, "got"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			testwait.Until(t, "seen to complete", func() bool { return f.outcomes(EndingCompleted) == 1 })
		})
	}
}
