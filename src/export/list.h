/* Every export. A leaf is removed by deleting its files and its line here. */
#ifndef EXPORT_LIST_H
#define EXPORT_LIST_H

#include "export/vhost_blk.h"

#endif
