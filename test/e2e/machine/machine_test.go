package machine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/installer"
)

func TestConsole(t *testing.T) {
	var got []string
	c := &console{report: func(r installer.Report) { got = append(got, r.Step) }}
	text := "boot\r\n[ 1.0] x " + installer.Report{Step: "one"}.Line() + "\r\n" + strings.Repeat("noise ", 20_000) + "\n" +
		installer.Report{Step: "two"}.Line() + "\n" + installer.Report{Step: "cut"}.Line()
	for i := 0; i < len(text); i += 7 {
		if _, err := c.Write([]byte(text[i:min(i+7, len(text))])); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"one", "two"}, got); diff != "" {
		t.Error(diff)
	}
}
