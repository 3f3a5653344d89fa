/* What SPDK's clients, and people who ask for JSON, are told of NVMe controllers. */
#ifndef CTL_NVME_JSON_H
#define CTL_NVME_JSON_H

#include <jansson.h>

#include "backend/list.h"

/* "driver_specific" of a bdev of nvme_driver, as bdev_get_bdevs has it. */
json_t *nvme_json_bdev(const struct bdev *b);

/* An element of bdev_nvme_get_controllers. */
json_t *nvme_json_controller(const struct nvme_info *i);

/* bdev_nvme_get_controller_health_info; bdf may be NULL. */
json_t *nvme_json_health(const struct nvme_id_ctrl *id, const char *bdf,
			 const struct nvme_smart_log *log);

/* `riffle identify`: a controller, and an element of its "namespaces". */
json_t *nvme_json_id_ctrl(const struct nvme_id_ctrl *id);
json_t *nvme_json_id_ns(uint32_t nsid, const struct nvme_id_ns *id);

#endif
