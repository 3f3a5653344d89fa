/*
 * vhost_copy FILE SOCKET: write FILE to the beginning of a vhost-user-blk disk, flush, read it back
 * and compare. It brings a file system to a disk that no kernel drives. Exit status: 0, 1 with a
 * sentence.
 */
#include <stdio.h>
#include <string.h>

#include "fake/guest.h"

#define CHUNK 65536u

static int copy(FILE *file, struct guest *g)
{
	static char data[CHUNK], back[CHUNK];
	uint64_t sector = 0;
	size_t n;

	while ((n = fread(data, 1, CHUNK, file)) > 0) {
		n = (n + BLK_SECTOR - 1) / BLK_SECTOR * BLK_SECTOR;
		if (guest_write(g, 0, sector, data, n) || guest_flush(g, 0) ||
		    guest_read(g, 0, sector, back, n)) {
			fprintf(stderr, "vhost_copy: a request failed at sector %ju\n",
				(uintmax_t)sector);
			return 1;
		}
		if (memcmp(data, back, n) != 0) {
			fprintf(stderr, "vhost_copy: sector %ju reads back otherwise\n",
				(uintmax_t)sector);
			return 1;
		}
		sector += n / BLK_SECTOR;
		memset(data, 0, sizeof(data));
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct guest *g;
	FILE *file;
	int rc;

	if (argc != 3) {
		fprintf(stderr, "usage: vhost_copy FILE SOCKET\n");
		return 1;
	}
	file = fopen(argv[1], "re");
	if (!file) {
		fprintf(stderr, "vhost_copy: %s cannot be read\n", argv[1]);
		return 1;
	}
	if (guest_open(&(struct guest_params){ .path = argv[2] }, &g)) {
		fprintf(stderr, "vhost_copy: no disk at %s\n", argv[2]);
		return 1;
	}
	rc = copy(file, g);
	guest_close(g);
	fclose(file);
	return rc;
}
