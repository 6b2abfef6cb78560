package lab

import "testing"

func TestMapped(t *testing.T) {
	tests := map[string]struct {
		uidMap string
		want   bool
	}{
		"the machine's own users":  {"         0          0 4294967295\n", true},
		"one user":                 {"         0       1000          1\n", false},
		"subordinate users":        {"0 1000 1\n1 100000 65536\n", true},
		"too few of them":          {"0 1000 1\n1 100000 60000\n", false},
		"from the first one above": {"65533 100000 10\n", false},
		"none":                     {"", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := mapped(test.uidMap, unprivileged); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
