package lab_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// A log that grows is followed until the line comes, however long that takes. One that does not grow is given up, and
// the error says how far it got.
func TestLine(t *testing.T) {
	for _, test := range []struct {
		pause time.Duration
		stuck int // the line after which no more are written
		fault string
	}{
		{24 * time.Second, 20, ""},
		{24 * time.Second, 3, "given up after 1m45s: log printed last: line 3"},
		{time.Second, 0, "nothing moved for 30s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			go func() {
				for i := 1; i <= test.stuck; i++ {
					time.Sleep(test.pause)
					file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = fmt.Fprintf(file, "line %d\n", i)
					_ = file.Close()
				}
			}()
			err := lab.Line(t.Context(), path, func(line string) bool { return line == "line 20" })
			if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got %v, want %q", err, test.fault)
			}
		})
	}
}
