.PHONY: bench-boot-journal
bench-boot-journal: ## what an event of a boot costs the packets' paths, and what the journal of boots takes, two minutes
	BENCH_BOOT=$(abspath $(BUILD))/bench/boot.json go test ./pkg/boot/journal -run '^TestBenchBoot$$' -count 1 -v
