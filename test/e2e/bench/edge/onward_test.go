package edge

import (
	"fmt"
	"io"
	"os"
	"testing"
)

// A download that comes slowly is not given up; one that stands still is, and the error says how much had come.
func TestOnward(t *testing.T) {
	late := fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	type read struct {
		n   int64
		err error
	}
	for name, test := range map[string]struct {
		reads []read
		fault string
	}{
		"at once":    {[]read{{10, io.EOF}}, ""},
		"slow":       {[]read{{1, late}, {1, late}, {1, late}, {1, late}, {6, io.EOF}}, ""},
		"stuck":      {[]read{{3, late}, {4, late}, {0, late}}, "failed to download: nothing came for 20s, 7 bytes of 10 had come"},
		"never":      {[]read{{0, late}}, "failed to download: nothing came for 20s, 0 bytes of 10 had come"},
		"torn":       {[]read{{3, late}, {4, io.EOF}}, "failed to download: the end came after 7 bytes of 10"},
		"broken off": {[]read{{3, late}, {1, io.ErrClosedPipe}}, "failed to download: after 4 bytes of 10: io: read/write on closed pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			err := onward(10, func() (int64, error) {
				next := test.reads[0]
				test.reads = test.reads[1:]
				return next.n, next.err
			})
			if (err == nil) != (test.fault == "") || err != nil && err.Error() != test.fault {
				t.Errorf("got %v, want %q", err, test.fault)
			}
			if len(test.reads) > 0 {
				t.Errorf("%d reads were not made", len(test.reads))
			}
		})
	}
}
