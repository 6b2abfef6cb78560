package syslog

import (
	"os"
	"strings"
	"testing"
)

// The manual has a row for each reason.
func TestManual(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/syslog.md")
	if err != nil {
		t.Fatal(err)
	}
	want := func(name string) {
		if !strings.Contains(string(manual), "`"+name+"`") {
			t.Errorf("docs/syslog.md does not mention %s", name)
		}
	}
	for d := DropNot + 1; d < numDrops; d++ {
		want(d.String())
	}
}
