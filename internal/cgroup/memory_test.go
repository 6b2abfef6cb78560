package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinkerbell/stack/internal/cgroup"
)

func TestMemory(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		limit int64
		used  int64
		err   error
	}{
		"v2": {
			files: map[string]string{
				"memory.max": "268435456\n", "memory.current": "5000000\n",
				"memory.stat": "anon 1\nfile 900000\ninactive_file 400000\nactive_file 100000\n",
			},
			limit: 256 << 20, used: 4500000,
		},
		"v2 with files that have to be written first": {
			files: map[string]string{
				"memory.max": "268435456\n", "memory.current": "5000000\n",
				"memory.stat": "anon 1\nfile 900000\nfile_mapped 4096\nfile_dirty 100000\nfile_writeback 50000\n" +
					"inactive_file 400000\nactive_file 100000\n",
			},
			limit: 256 << 20, used: 4650000,
		},
		"v2 with files in tmpfs, which no disk can take": {
			files: map[string]string{
				"memory.max": "268435456\n", "memory.current": "140000000\n",
				"memory.stat": "anon 4000000\nfile 130829120\nshmem 125829120\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n" +
					"inactive_anon 129829120\nactive_anon 8192\ninactive_file 4000000\nactive_file 1000000\nunevictable 0\n",
			},
			limit: 256 << 20, used: 135000000,
		},
		"v1 with files in tmpfs, which no disk can take": {
			files: map[string]string{
				"memory/memory.limit_in_bytes": "268435456\n", "memory/memory.usage_in_bytes": "135000000\n",
				"memory/memory.kmem.tcp.usage_in_bytes": "5000000\n",
				"memory/memory.stat": "cache 130829120\nshmem 125829120\ntotal_cache 130829120\ntotal_rss 4000000\n" +
					"total_shmem 125829120\ntotal_dirty 0\ntotal_writeback 0\ntotal_inactive_anon 129829120\n" +
					"total_active_anon 8192\ntotal_inactive_file 4000000\ntotal_active_file 1000000\n",
			},
			limit: 256 << 20, used: 135000000,
		},
		"v1 with files that have to be written first": {
			files: map[string]string{
				"memory/memory.limit_in_bytes": "1000000\n", "memory/memory.usage_in_bytes": "500000\n",
				"memory/memory.stat": "dirty 1\ntotal_dirty 4000\ntotal_writeback 1000\ntotal_inactive_file 20000\ntotal_active_file 10000\n",
			},
			limit: 1000000, used: 475000,
		},
		"v2 that is slowed down first": {
			files: map[string]string{
				"memory.max": "268435456\n", "memory.high": "200000000\n", "memory.current": "1000\n", "memory.stat": "anon 1\n",
			},
			limit: 200000000, used: 1000,
		},
		"v1": {
			files: map[string]string{
				"memory/memory.limit_in_bytes": "1000000\n", "memory/memory.usage_in_bytes": "500000\n",
				"memory/memory.kmem.tcp.usage_in_bytes": "30000\n",
				"memory/memory.stat":                    "inactive_file 7\ntotal_inactive_file 20000\ntotal_active_file 10000\n",
			},
			limit: 1000000, used: 500000,
		},
		"v1 without sockets": {
			files: map[string]string{
				"memory/memory.limit_in_bytes": "1000000\n", "memory/memory.usage_in_bytes": "500000\n", "memory/memory.stat": "cache 1\n",
			},
			limit: 1000000, used: 500000,
		},
		"v2 without limit": {files: map[string]string{"memory.max": "max\n"}, err: cgroup.ErrNone},
		"v1 without limit": {
			files: map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, err: cgroup.ErrNone,
		},
		"none": {err: cgroup.ErrNone},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range test.files {
				path := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			m, err := cgroup.Open(root)
			if !errors.Is(err, test.err) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			if err != nil {
				return
			}
			defer func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}()
			if used, err := m.Used(); err != nil || used != test.used || m.Limit() != test.limit {
				t.Errorf("got %d of %d, want %d of %d: %v", used, m.Limit(), test.used, test.limit, err)
			}
		})
	}
}
