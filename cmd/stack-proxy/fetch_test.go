package main

import (
	"bufio"
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/pkg/artifacts/fetch"
)

func TestMissingDirectoryOfFilesIsTold(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	c := config{Preset: "classic", FilesDirectory: filepath.Join(t.TempDir(), "artifacts")}
	table, err := c.table()
	if err != nil {
		t.Fatal(err)
	}
	c.sayMissing(table, logger)
	if got := log.String(); !strings.Contains(got, "files are not there") || !strings.Contains(got, "directory="+c.FilesDirectory) {
		t.Errorf("logged %q", got)
	}
	log.Reset()
	c.ArtifactsFile = "artifacts.yaml" // that directory is made when the first file is fetched
	c.sayMissing(table, logger)
	c.ArtifactsFile = ""
	if err := os.Mkdir(c.FilesDirectory, 0o755); err != nil {
		t.Fatal(err)
	}
	c.sayMissing(table, logger)
	if got := log.String(); got != "" {
		t.Errorf("logged %q", got)
	}
}

// The program says so when it starts, and starts.
func TestStartTellsOfMissingFiles(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "artifacts")
	routes := filepath.Join(t.TempDir(), "routes.yaml")
	text := fmt.Sprintf("routes:\n- {name: files, protocol: files, listen: %q, files: {directory: %q}}\n", freeAddress(t), directory)
	if err := os.WriteFile(routes, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), programVariable+"=1", prefix+"_ROUTES_FILE="+routes, prefix+"_ADMIN_ADDRESS="+freeAddress(t),
		prefix+"_DRAIN_GRACE=0s")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := false
	for lines := bufio.NewScanner(said); lines.Scan(); {
		told = told || strings.Contains(lines.Text(), "files are not there") && strings.Contains(lines.Text(), directory)
		if strings.Contains(lines.Text(), `"msg":"started"`) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !told {
		t.Errorf("it ended with %v, and told of the missing directory: %v", err, told)
	}
}

func TestFetch(t *testing.T) {
	kernel := []byte("kernel")
	sum := sha512.Sum512(kernel)
	release := http.NewServeMux()
	release.HandleFunc("/vmlinuz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(kernel) })
	server := httptest.NewServer(release)
	defer server.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "artifacts.yaml")
	text := "volume: " + dir + "/volume\nsets:\n- name: mine\n  files:\n  - url: " + server.URL +
		"/vmlinuz\n    digest: sha512:" + hex.EncodeToString(sum[:]) + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"fetch", "-f", file}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	if got, err := os.ReadFile(filepath.Join(dir, "volume", "current", "vmlinuz")); err != nil || !bytes.Equal(got, kernel) {
		t.Errorf("got %q, %v", got, err)
	}
	c := config{ArtifactsFile: file, FilesDirectory: filepath.Join(dir, "volume")}
	if f, err := c.fetcher(nil, nil); err != nil || c.FilesDirectory != f.Directory() {
		t.Errorf("what is served is %s, %v", c.FilesDirectory, err)
	}
	c.Preset = "classic"
	if made, err := c.table(); err != nil || !made.Routes[len(made.Routes)-1].Optional {
		t.Errorf("files that are still being fetched keep the process unready: %+v, %v", made.Routes, err)
	}
	for name, args := range map[string][]string{
		"no file": {"fetch"}, "no such file": {"fetch", "-f", dir + "/none"}, "no such flag": {"fetch", "-x"},
	} {
		stderr.Reset()
		if code := run(args, &stdout, &stderr); code == 0 || stderr.Len() == 0 {
			t.Errorf("%s: exit status %d, %q", name, code, stderr.String())
		}
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "volume", "volumes", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if code := run([]string{"fetch", "-f", file}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "volumes") {
		t.Errorf("a wrong file: exit status %d, %q", code, stderr.String())
	}
}

// TestReplicaWithoutFilesLetsOthersServe: for as long as it is told to, and never for ever, since a release that is gone
// must not take away what the process does besides.
func TestReplicaWithoutFilesLetsOthersServe(t *testing.T) {
	f, err := fetch.New(fetch.Config{
		Volume: t.TempDir(), Sets: []fetch.Set{{Name: "os", URL: "http://192.0.2.1", Names: []string{"*"}}},
	}, fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		one := background{f, time.Now()}
		if err := one.Ready(); err != nil {
			t.Errorf("alone: %v", err)
		}
		several := background{f, time.Now().Add(time.Minute)}
		if err := several.Ready(); err == nil {
			t.Error("without files, and ready at once")
		}
		time.Sleep(time.Minute)
		if err := several.Ready(); err != nil {
			t.Errorf("after the wait: %v", err)
		}
	})
}
