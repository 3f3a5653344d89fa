/*
 * Where does a JSON text end? Requests come as concatenated objects with any white space between,
 * in pieces of any size; this scanner looks at each byte once and says when a whole object or array
 * has been seen. It does not judge the text.
 */
#ifndef CTL_FRAME_H
#define CTL_FRAME_H

#include <stdbool.h>
#include <stddef.h>

#define FRAME_DEPTH_MAX 64

struct frame {
	size_t at; /* bytes looked at since the start of the buffer */
	unsigned depth;
	bool in_string, escaped;
};

enum frame_result {
	FRAME_MORE,  /* no whole text yet */
	FRAME_WHOLE, /* the first f->at bytes are white space and one text */
	FRAME_BAD, /* not an object or array, or nested too deeply: the stream cannot be followed */
};

/* buf[0, len): all bytes since the last whole text. Goes on where it stopped. */
enum frame_result frame_scan(struct frame *f, const char *buf, size_t len);

#endif
