package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	sign := LastLine("the firmware", path)
	if got := sign(); got != "" {
		t.Errorf("a file that is not there says %q", got)
	}
	for text, want := range map[string]string{
		"": "", "\r\n\n": "",
		"one\ntwo\n":                         "the firmware printed last: two",
		"\x1b[2J\x1b[01;01H>>Start PXE.....": "the firmware printed last: >>Start PXE",
		"Loading\r\n\x1b[0m\n....\n":         "the firmware printed last: Loading",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := sign(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
