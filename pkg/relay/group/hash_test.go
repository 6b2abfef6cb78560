package group

import (
	"testing"
	"time"
)

// TestPearsonIsAPermutation finds a slip in the table.
func TestPearsonIsAPermutation(t *testing.T) {
	var seen [buckets]bool
	for _, v := range pearson {
		if seen[v] {
			t.Errorf("%d stands there twice", v)
		}
		seen[v] = true
	}
}

// TestBucket: the hash begins with the length and takes the bytes from the last to the first (RFC 3074 section 6).
func TestBucket(t *testing.T) {
	tests := []struct {
		identity []byte
		want     uint8
	}{
		{nil, 0},
		{[]byte{0}, pearson[1]},
		{[]byte{7}, pearson[1^7]},
		{[]byte{1, 2}, pearson[pearson[0]^1]},
		{[]byte{2, 1}, pearson[pearson[2^1]^2]},
	}
	for _, test := range tests {
		if got := Bucket(test.identity); got != test.want {
			t.Errorf("%x: got %d, want %d", test.identity, got, test.want)
		}
	}
}

// TestBucketsAreShared: any number of replicas gets about its share, of machines of one maker as well.
func TestBucketsAreShared(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		counts := make([]int, n)
		for i := range 4096 {
			bucket := Bucket([]byte{0x52, 0x54, 0, 0x12, byte(i >> 8), byte(i)})
			best := 0
			for r := range n {
				if weight(uint64(r)+1, bucket) > weight(uint64(best)+1, bucket) {
					best = r
				}
			}
			counts[best]++
		}
		for r, got := range counts {
			if fair := 4096 / n; got < fair*2/3 || got > fair*4/3 {
				t.Errorf("replica %d of %d has %d machines of 4,096", r, n, got)
			}
		}
	}
}

func TestSeconds(t *testing.T) {
	for secs, want := range map[uint16]time.Duration{
		0: 0, 1: time.Second, 0x0100: time.Second, 7: 7 * time.Second, 0x0a00: 10 * time.Second, 0x0102: 258 * time.Second,
	} {
		if got := Seconds(secs); got != want {
			t.Errorf("%#04x: got %v, want %v", secs, got, want)
		}
	}
}
