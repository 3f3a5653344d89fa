#include "ctl/frame.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void scan_string(struct frame *f, char c)
{
	if (f->escaped)
		f->escaped = false;
	else if (c == '\\')
		f->escaped = true;
	else if (c == '"')
		f->in_string = false;
}

enum frame_result frame_scan(struct frame *f, const char *buf, size_t len)
{
	while (f->at < len) {
		char c = buf[f->at++];

		if (f->in_string) {
			scan_string(f, c);
		} else if (c == '{' || c == '[') {
			if (++f->depth > FRAME_DEPTH_MAX)
				return FRAME_BAD;
		} else if (f->depth == 0) {
			if (!is_space(c))
				return FRAME_BAD;
		} else if (c == '"') {
			f->in_string = true;
		} else if (c == '}' || c == ']') {
			if (--f->depth == 0)
				return FRAME_WHOLE;
		}
	}
	return FRAME_MORE;
}
