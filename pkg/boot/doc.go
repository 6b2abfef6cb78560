// Package boot is what the programs of the stack tell each other about machines that boot: one event type, a bounded
// queue for it that the paths of packets write to without waiting, and its encoding. The packages below it keep,
// explain and show what the events say.
package boot
